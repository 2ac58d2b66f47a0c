//! The lines of the comparison, in the order of the paper's sections.

use super::super::line::{Better, Figure, PaperLine, Standing, Unit};
use super::figures::figures;
use super::machine::{MODELS, Machine, ModelShapes, Spent};
use super::pass::{Way, decode, prefill};
use anyhow::{Context, Result};
use heg_spec::policy::Synchronisation;

/// Prompt lengths that match a static size (5.2.1).
pub(super) const LENGTHS: [u32; 3] = [64, 256, 1024];
/// Prompt lengths that do not; the paper names 135, 525 and 1000.
pub(super) const ODD_LENGTHS: [u32; 5] = [135, 300, 525, 600, 1000];
/// Prompt lengths just above a static size.
const PAST_SIZES: [u32; 4] = [66, 132, 263, 525];
/// Tokens before the first decoded one.
pub(super) const CONTEXT: u32 = 256;

const FAST: Synchronisation = Synchronisation::Fast;
const PLAIN: Synchronisation = Synchronisation::Plain;

const GPU_RATE: &str = "the GPU multiplies at the 1 TFLOP/s that the introduction has, PPL-OpenCL at 0.9 by its own speed";
const BOTH: &str = "both devices compute at once as fast as each alone, and that is the bound";
const FIXED: &str = "a hand-over costs the same in every model here, as copies do by section 3.1: what the paper gains with 7B beyond \
                     8B it does not explain";

const ALONE: &str = "each device computes beside the other as fast as alone here, but for the memory that they share";
const NO_WASTE: &str =
    "cuts cost nothing here but the hand-over, and pieces are as fast as their share of a product";

/// A figure that is better if it is larger; `why` is the reason if it is less.
fn at_least(name: impl Into<String>, unit: Unit, figures: [f64; 2], why: &str) -> PaperLine {
    PaperLine::compared(name, unit, Better::More, figures).missed_since(why)
}

/// A figure that is better if it is smaller; `why` is the reason if it is more.
fn at_most(name: impl Into<String>, unit: Unit, figures: [f64; 2], why: &str) -> PaperLine {
    PaperLine::compared(name, unit, Better::Less, figures).missed_since(why)
}

/// Another engine by the paper's ratio to it: our speed by the paper's speed of the engine.
fn of_engine(name: String, figures: [f64; 2]) -> PaperLine {
    at_least(
        name,
        Unit::Times,
        figures,
        "as the speed that it is taken from",
    )
    .standing(Standing::Repeats)
}

/// The model with this name.
pub(super) fn model(name: &str) -> Result<ModelShapes> {
    let found = MODELS.into_iter().find(|model| model.name == name);
    found.with_context(|| format!("no model `{name}`"))
}

/// Speeds of one machine.
pub(super) struct Speeds<'m>(pub(super) &'m Machine);

impl Speeds<'_> {
    /// Prefill speed in tokens per second.
    pub(super) fn prefill(
        &self,
        model: ModelShapes,
        tokens: u32,
        how: (Way, Synchronisation),
    ) -> Result<f64> {
        let spent = prefill(self.0, model, tokens, how)?;
        Ok(f64::from(tokens) / spent.latency_us * 1e6)
    }

    /// Decode speed in tokens per second.
    pub(super) fn decode(&self, model: ModelShapes, how: (Way, Synchronisation)) -> Result<f64> {
        Ok(1e6 / decode(self.0, model, CONTEXT, how)?.latency_us)
    }

    /// Speedup of one way over another, averaged over lengths.
    fn gain(
        &self,
        model: ModelShapes,
        lengths: &[u32],
        ways: [(Way, Synchronisation); 2],
    ) -> Result<f64> {
        let [ours, theirs] = ways;
        let ratio = |tokens: &u32| {
            Ok(self.prefill(model, *tokens, ours)? / self.prefill(model, *tokens, theirs)?)
        };
        let ratios: Vec<f64> = lengths.iter().map(ratio).collect::<Result<_>>()?;
        Ok(mean(&ratios))
    }
}

fn mean(figures: &[f64]) -> f64 {
    figures.iter().sum::<f64>() / figures.len() as f64
}

/// All lines about the paper's machine.
pub(super) fn all(machine: &Machine) -> Result<Vec<PaperLine>> {
    let sections = [
        (aligned(machine)?, ALONE),
        (aligned_cut(machine)?, ALONE),
        (aligned_speeds(machine)?, ALONE),
        (misaligned(machine)?, NO_WASTE),
        (decoding(machine)?, NO_WASTE),
        (synchronised(machine)?, FIXED),
        (game(machine)?, ALONE),
        (power(machine)?, ALONE),
    ];
    let lines = sections.into_iter().flat_map(|(lines, flatters)| {
        let lines = lines.into_iter();
        lines.map(move |line| line.beyond_since(flatters))
    });
    Ok(lines.collect())
}

/// Prompts of static sizes, with layers placed on devices (5.2.1).
fn aligned(machine: &Machine) -> Result<Vec<PaperLine>> {
    use Unit::Times;
    let says = figures()?;
    let speeds = Speeds(machine);
    let large = model("llama-3-8b")?;
    let layer = speeds.prefill(large, 256, (Way::Layer, FAST))?;
    let theirs = says.tensor_256[1] / *says.tensor_over_layer_256;
    let mut lines = Vec::new();
    for (engine, paper) in says.layer_gains_256.iter().cloned() {
        let name = format!(
            "prompt of 256, 8B, layers placed, against {engine} by the paper's speed of it"
        );
        // The speed of placed layers is what `matrix_units` was fitted to.
        let line = of_engine(name, [paper, paper * layer / theirs]);
        lines.push(line.standing(Standing::Fitted));
    }
    let ours = layer / speeds.prefill(large, 256, (Way::Second, FAST))?;
    let name = "prompt of 256, 8B, layers placed, against the GPU alone";
    lines.push(at_least(
        name,
        Times,
        [*says.layer_over_second_256, ours],
        GPU_RATE,
    ));
    Ok(lines)
}

/// The same prompts with tensors cut (5.2.1).
fn aligned_cut(machine: &Machine) -> Result<Vec<PaperLine>> {
    use Unit::Times;
    let says = figures()?;
    let speeds = Speeds(machine);
    let large = model("llama-3-8b")?;
    let mut lines = Vec::new();
    let ways = [(Way::Tensor, FAST), (Way::Layer, FAST)];
    let gains = MODELS.map(|model| speeds.gain(model, &LENGTHS, ways));
    let gains: Vec<f64> = gains.into_iter().collect::<Result<_>>()?;
    let name = "tensors cut against layers placed, mean of four models at 64, 256, 1024";
    lines.push(PaperLine::beside(
        name.to_owned(),
        Times,
        Figure::One(mean(&gains)),
    ));
    let name = "tensors cut against layers placed, 8B, mean at 64, 256, 1024";
    lines.push(at_least(
        name,
        Times,
        [
            says.tensor_over_layer[0],
            speeds.gain(large, &LENGTHS, ways)?,
        ],
        BOTH,
    ));
    let name = "tensors cut against layers placed, 8B, at 32";
    lines.push(at_least(
        name,
        Times,
        [says.tensor_over_layer[1], speeds.gain(large, &[32], ways)?],
        BOTH,
    ));
    Ok(lines)
}

/// Speeds with tensors cut, compared with other engines (5.2.1).
fn aligned_speeds(machine: &Machine) -> Result<Vec<PaperLine>> {
    use Unit::{Times, TokensPerSec};
    let says = figures()?;
    let speeds = Speeds(machine);
    let large = model("llama-3-8b")?;
    let mut lines = Vec::new();
    let tensor = speeds.prefill(large, 1024, (Way::Tensor, FAST))?;
    lines.push(at_least(
        "prompt of 1024, 8B, tensors cut",
        TokensPerSec,
        [*says.tensor_1024, tensor],
        BOTH,
    ));
    for (engine, paper) in says.tensor_gains_1024.iter().cloned() {
        let name =
            format!("prompt of 1024, 8B, tensors cut, against {engine} by the paper's speed of it");
        lines.push(of_engine(name, [paper, paper * tensor / *says.tensor_1024]));
    }
    let small = speeds.prefill(model("internlm2-1.8b")?, 256, (Way::Tensor, FAST))?;
    lines.push(at_least(
        "prompt of 256, 1.8B, tensors cut",
        TokensPerSec,
        [says.internlm_256[0], small],
        BOTH,
    ));
    let [paper, other] = *says.internlm_256;
    let name = "prompt of 256, 1.8B, tensors cut, against mllm-npu by the paper's speed of it";
    lines.push(of_engine(name.to_owned(), [paper / other, small / other]));
    let ways = [(Way::Tensor, FAST), (Way::Second, FAST)];
    let ours = speeds.gain(model("llama-3.2-3b")?, &LENGTHS, ways)?;
    let name = "tensors cut against the GPU alone, 3B, mean at 64, 256, 1024";
    lines.push(at_least(
        name,
        Times,
        [*says.tensor_over_second_3b, ours],
        GPU_RATE,
    ));
    Ok(lines)
}

/// Prompts of other lengths (5.2.2).
fn misaligned(machine: &Machine) -> Result<Vec<PaperLine>> {
    let says = figures()?;
    let speeds = Speeds(machine);
    let large = model("llama-3-8b")?;
    let against =
        |way, lengths: &[u32]| speeds.gain(large, lengths, [(Way::Tensor, FAST), (way, FAST)]);
    let mut lines = Vec::new();
    let ways = [
        (
            Way::OnlinePrepare,
            "online-prepare",
            "preparation is taken from the line between the paper's two figures; at 525 its own total leaves more than that",
        ),
        (
            Way::Padding,
            "padding",
            "the solver's cuts gain less here than the padding costs",
        ),
        (
            Way::Pipe,
            "the pipe",
            "the pipe's margin of 13 tokens costs a call of 32",
        ),
    ];
    for ((way, name, why), paper) in ways.into_iter().zip(*says.odd_525) {
        let name = format!("prompt of 525, 8B, tensors cut against {name}");
        lines.push(at_least(
            name,
            Unit::Times,
            [paper, against(way, &[525])?],
            why,
        ));
    }
    let ours = against(Way::Padding, &PAST_SIZES)?;
    let name = "tensors cut against padding just past a size, 8B, mean at 66, 132, 263, 525";
    lines.push(at_least(
        name,
        Unit::Times,
        [*says.past_a_size, ours],
        "as at 525",
    ));
    let saved = ODD_LENGTHS.map(|tokens| Ok(1.0 - 1.0 / against(Way::Pipe, &[tokens])?));
    let saved: Vec<f64> = saved.into_iter().collect::<Result<_>>()?;
    let least = saved.iter().copied().fold(f64::INFINITY, f64::min);
    let most = saved.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    for ((end, ours), paper) in [("least", least), ("most", most)]
        .into_iter()
        .zip(*says.below_pipe)
    {
        let name = format!("time saved over the pipe at five odd lengths, 8B, the {end}");
        let why = "a length just below a size fills it, and the second device adds no more than at a size";
        lines.push(at_least(
            name,
            Unit::Percent,
            [100.0 * paper, 100.0 * ours],
            why,
        ));
    }
    Ok(lines)
}

/// Decoding (5.3).
fn decoding(machine: &Machine) -> Result<Vec<PaperLine>> {
    let says = figures()?;
    let speeds = Speeds(machine);
    let mut lines = Vec::new();
    let why = "what is read for a token, at the paper's bandwidth";
    for (name, paper, gain) in says.decode.iter().cloned() {
        let model = model(&name)?;
        let tensor = speeds.decode(model, (Way::Tensor, FAST))?;
        let ours = tensor / speeds.decode(model, (Way::Second, FAST))?;
        let what = format!("decoding, {name}, tensors cut");
        lines.push(at_least(&what, Unit::TokensPerSec, [paper, tensor], why));
        let name = format!("{what}, against the GPU alone");
        lines.push(at_least(name, Unit::Times, [gain, ours], why));
        for (_, engine, gain) in says.decode_gains.iter().filter(|(of, ..)| of == model.name) {
            let name = format!("{what}, against {engine} by the paper's speed of it");
            lines.push(of_engine(name, [*gain, gain * tensor / paper]));
        }
    }
    let large = model("llama-3-8b")?;
    for (way, name, paper) in [
        (Way::Second, "the GPU alone", says.drawn[0]),
        (Way::Tensor, "tensors cut", says.drawn[1]),
    ] {
        let drawn = drawn(machine, large, way)?;
        let name = format!("drawn by the products of a token, 8B, {name}");
        let why = "while a result is handed over, and while one device waits for the other, less is drawn: the file's 59.1 GB/s are what both draw at work";
        let line = at_least(name, Unit::GigabytesPerSec, [paper, drawn], why);
        lines.push(line.standing(Standing::Input));
    }
    Ok(lines)
}

/// Bandwidth used by the products of a token, in GB/s.
fn drawn(machine: &Machine, model: ModelShapes, way: Way) -> Result<f64> {
    let all = decode(machine, model, CONTEXT, (way, FAST))?;
    let between = machine.between(model, 1, CONTEXT);
    let between_us = f64::from(model.dimensions.layers) * between.latency_us;
    Ok(all.moved_bytes / (all.latency_us - between_us) / 1e3)
}

/// Fast compared with plain synchronisation, with the same cuts (5.4).
fn synchronised(machine: &Machine) -> Result<Vec<PaperLine>> {
    let says = figures()?;
    let speeds = Speeds(machine);
    let mut lines = Vec::new();
    for (name, paper) in says.fast_prefill.iter().cloned() {
        for ((way, what), paper) in [(Way::Layer, "layers placed"), (Way::Tensor, "tensors cut")]
            .into_iter()
            .zip(paper)
        {
            let ours = speeds.gain(model(&name)?, &LENGTHS, [(way, FAST), (way, PLAIN)])?;
            let name =
                format!("fast synchronisation in prompts, {name}, {what}, mean at 64, 256, 1024");
            lines.push(at_least(name, Unit::Times, [paper, ours], FIXED));
        }
    }
    let large = model("llama-3-8b")?;
    for (sync, name, paper) in [
        (PLAIN, "plain", says.tensor_256[0]),
        (FAST, "fast", says.tensor_256[1]),
    ] {
        let ours = speeds.prefill(large, 256, (Way::Tensor, sync))?;
        let name = format!("prompt of 256, 8B, tensors cut, {name} synchronisation");
        let line = at_least(name, Unit::TokensPerSec, [paper, ours], FIXED);
        // What a plain hand-over takes was fitted to the difference of both.
        lines.push(match sync {
            Synchronisation::Plain => line.standing(Standing::Fitted),
            Synchronisation::Fast => line,
        });
    }
    for (name, paper) in says.fast_decode.iter().cloned() {
        let speed = |sync| speeds.decode(model(&name)?, (Way::Tensor, sync));
        let ours = speed(FAST)? / speed(PLAIN)?;
        let name = format!("fast synchronisation in decoding, {name}, tensors cut");
        lines.push(at_least(name, Unit::Times, [paper, ours], FIXED));
    }
    Ok(lines)
}

/// Beside a game that takes a share of the GPU (5.5): the share at which placed layers lose as much as in the paper.
fn game(machine: &Machine) -> Result<Vec<PaperLine>> {
    let says = figures()?;
    let large = model("llama-3-8b")?;
    let speed = |machine: &Machine, way| Speeds(machine).prefill(large, 256, (way, FAST));
    let layer = speed(machine, Way::Layer)?;
    let (mut less, mut more) = (0.0, 0.95);
    for _ in 0..40 {
        let share = 0.5 * (less + more);
        let loss = 1.0 - speed(&machine.with_second_taken(share), Way::Layer)? / layer;
        match loss < says.game_loss[0] {
            true => less = share,
            false => more = share,
        }
    }
    let beside_game = machine.with_second_taken(less);
    let tensor = speed(&beside_game, Way::Tensor)?;
    let loss = 1.0 - tensor / speed(machine, Way::Tensor)?;
    let why = format!(
        "a game that costs layers placed 9.6% takes {:.0}% of this GPU, which does more of the products than the paper's",
        100.0 * less
    );
    let paper = 100.0 * says.game_loss[1];
    Ok(vec![
        at_most(
            "speed lost beside a game, 8B at 256, tensors cut",
            Unit::Percent,
            [paper, 100.0 * loss],
            &why,
        ),
        at_least(
            "tensors cut beside a game against layers placed without, 8B at 256",
            Unit::Times,
            [*says.game_over_layer, tensor / layer],
            &why,
        ),
    ])
}

/// Power and energy (5.6).
fn power(machine: &Machine) -> Result<Vec<PaperLine>> {
    let says = figures()?;
    let large = model("llama-3-8b")?;
    let of = |way| prefill(machine, large, 256, (way, FAST));
    let [second, layer, tensor] = [of(Way::Second)?, of(Way::Layer)?, of(Way::Tensor)?];
    let watts = |spent: &Spent| joules(machine, spent) / spent.latency_us * 1e6;
    let energy = |spent: &Spent| joules(machine, spent);
    let why = "a device draws what it draws alone, whenever it works; the paper's 2.75 W for both at once are less than the sum \
               of 2.23 and 4.34, so that each draws less beside the other, how much it does not say";
    Ok(vec![
        at_most(
            "power, 8B at 256, layers placed",
            Unit::Watts,
            [*says.layer_watts, watts(&layer)],
            why,
        )
        .standing(Standing::Input),
        at_most(
            "power, 8B at 256, tensors cut against layers placed",
            Unit::Times,
            [*says.tensor_power, watts(&tensor) / watts(&layer)],
            why,
        ),
        at_most(
            "energy, 8B at 256, tensors cut against layers placed",
            Unit::Times,
            [*says.tensor_energy, energy(&tensor) / energy(&layer)],
            why,
        ),
        at_least(
            "energy, 8B at 256, the GPU alone against tensors cut",
            Unit::Times,
            [*says.energy_gain, energy(&second) / energy(&tensor)],
            why,
        ),
    ])
}

/// Energy of both devices while they work, in J.
fn joules(machine: &Machine, spent: &Spent) -> f64 {
    let watts = |place: usize| {
        let power = machine
            .soc
            .devices
            .get(place)
            .and_then(|device| device.power.as_ref());
        power.map_or(f64::NAN, |power| power.prefill_watts)
    };
    let (first, second) = (watts(machine.pair.first), watts(machine.pair.second));
    (spent.first_us * first + spent.second_us * second) / 1e6
}

/// The gains by the same cuts on another machine.
pub(super) fn elsewhere(machine: &Machine) -> Result<Vec<PaperLine>> {
    let speeds = Speeds(machine);
    let name = &machine.soc.name;
    let mut lines = Vec::new();
    for model in [model("llama-3.2-3b")?, model("llama-3-8b")?] {
        for tokens in [32, 256, 525] {
            let against = match tokens {
                525 => (Way::Pipe, "the pipe"),
                _ => (Way::Layer, "layers placed"),
            };
            let ours = speeds.gain(model, &[tokens], [(Way::Tensor, FAST), (against.0, FAST)])?;
            let what = format!(
                "{name}: prompt of {tokens}, {}, tensors cut against {}",
                model.name, against.1
            );
            lines.push(PaperLine::beside(what, Unit::Times, Figure::One(ours)));
        }
        let ours = speeds.decode(model, (Way::Tensor, FAST))?
            / speeds.decode(model, (Way::Second, FAST))?;
        let what = format!(
            "{name}: decoding, {}, tensors cut against the GPU alone",
            model.name
        );
        lines.push(PaperLine::beside(what, Unit::Times, Figure::One(ours)));
    }
    Ok(lines)
}
