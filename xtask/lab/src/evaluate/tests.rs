//! A small evaluation of the shipped sample, figure by figure: equal input gives equal output.

use super::assumption::Assumption;
use super::line::Figure;
use super::*;

fn small() -> Subject {
    let args = Args {
        paper: Paper::AgentXpu,
        soc: "core-ultra-5-125h".to_owned(),
        model: vec!["llama-3.2-3b".to_owned()],
        workloads: None,
        out: None,
        policies: DEFAULT_POLICIES.map(str::to_owned).to_vec(),
        seeds: 1,
        first_seed: 0,
        after_answer: false,
        minutes: 2,
        chunk: 256,
        flows: false,
        mixed_only: false,
        trace: Vec::new(),
        no_ablation: true,
    };
    subject(&args, args.workloads.as_deref()).unwrap()
}

#[test]
fn the_sample_gives_the_same_figures_on_any_machine() {
    let subject = small();
    let cases = |name| Case::named(&subject, name).unwrap();
    let names = [
        "agent-xpu:llama-3.2-3b:5+10",
        "igpu-continuous-batching:llama-3.2-3b:5+10",
        "serial-npu-igpu:llama-3.2-3b:5+10",
        "cpu-continuous-batching:llama-3.2-3b:5+10",
    ];
    let grid = Grid::only(names.map(cases).to_vec());
    let records = grid.run(&subject).unwrap();
    let rows: Vec<String> = records
        .iter()
        .map(|r| {
            let m = &r.metrics;
            format!(
                "{}: {} + {} requests, reactive {:.3} s (P90 {:.3}, first token {:.3}), proactive {:.3} s, \
                 {:.4} s/token, {:.3} J/token, iGPU {:.2} s, preemption {:.4} s",
                r.policy,
                m.reactive.completed,
                m.proactive.completed,
                m.reactive.latency_secs_mean,
                m.reactive.latency_secs_p90,
                m.reactive.ttft_secs_mean,
                m.proactive.latency_secs_mean,
                m.all.secs_per_token,
                m.joules_per_token,
                m.igpu_secs,
                m.preemption_secs_max
            )
        })
        .collect();
    insta::assert_snapshot!(rows.join("\n"));
    assert!(records.iter().all(|r| r.restarted == 0));
}

#[test]
fn a_run_is_named_by_policy_model_and_rates() {
    let subject = small();
    let named = |name| Case::named(&subject, name);
    let case = named("serial-npu-igpu:llama-3.2-3b:1+6").unwrap();
    assert_eq!((case.reactive_rpm, case.proactive_rpm), (1.0, 6.0));
    for wrong in [
        "agent-xpu:llama-3.2-3b",
        "agent-xpu:llama-3.2-3b:6",
        "agent-xpu:llama-3.2-3b:1+1000",
        "agent-xpu:llama-3.2-3b:1+nan",
        "nobody:llama-3.2-3b:1+6",
        "agent-xpu:gpt:1+6",
        "agent-xpu:llama-3.2-3b:1+6:7",
    ] {
        assert!(named(wrong).is_none(), "{wrong}");
    }
}

#[test]
fn figures_and_tables_are_drawn_of_what_there_is() {
    let subject = small();
    let case = Case::named(&subject, "agent-xpu:llama-3.2-3b:3+6").unwrap();
    let records = Grid::only(vec![case]).run(&subject).unwrap();
    for (name, svg) in figures::all(&subject, &records).unwrap() {
        assert!(svg.starts_with("<svg") && !svg.contains("NaN"), "{name}");
    }
    let (_, svg) = gantt::figure(&subject).unwrap().unwrap();
    assert!(svg.contains("(d) Agent.xpu: answer after"));
    let csv = tables::csv(&records).unwrap();
    let columns: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
    assert_eq!(columns.len(), 2);
    assert_eq!(columns[0], columns[1]);
}

#[test]
fn a_mechanism_that_is_off_already_is_not_ablated() {
    let mut subject = small();
    let turned = |subject: &Subject| {
        let cases = ablation::cases(subject);
        cases.iter().filter(|case| case.ablated.is_some()).count()
    };
    let whole = turned(&subject);
    subject.policies[0].policy.ageing = None;
    // The rule for the start of prompts' ageing is not ablated either.
    assert_eq!(turned(&subject), whole - 2 * ablation::REGIMES.len());
}

#[test]
fn the_commands_help() {
    use clap::Args as _;
    let command = clap::Command::new("evaluate").term_width(100);
    let mut command = Args::augment_args(command);
    insta::assert_snapshot!(command.render_long_help().to_string());
}

/// A report over short traces of two seeds has all its parts: each mechanism has a line, and its effects have an
/// interval.
#[test]
fn a_report_has_lines_and_mechanisms() {
    let mut subject = small();
    subject.seeds = 0..2;
    let own = subject.policies[0].clone();
    let mut cases: Vec<Case> = ablation::cases(&subject);
    cases.retain(|case| case.reactive_rpm == 3.0 && case.assumption == Assumption::Own);
    cases.truncate(8);
    let igpu = subject.policies[1].clone();
    for policy in [&own, &igpu] {
        for rates in [(3.0, 6.0), (3.0, 0.0)] {
            let regime = ablation::Regime::at(rates.0, rates.1);
            cases.extend(Case::of_regime(&subject, policy, regime));
        }
    }
    let records = Grid::only(cases).run(&subject).unwrap();
    let lines = paper::lines(&subject, &records);
    let reduction = lines
        .iter()
        .find(|line| line.name.contains(", 3+6 req/min"))
        .unwrap();
    let Figure::One(ours) = reduction.ours else {
        panic!("{reduction:?}");
    };
    assert!(reduction.low.unwrap() <= ours && ours <= reduction.high.unwrap());
    // No scheduler could do better, and none of these runs does.
    assert!(reduction.bound.unwrap() > ours);
    assert_eq!(bounds::passed(&records), Vec::<String>::new());
    let mechanisms = ablation::mechanisms(&subject, &records);
    let preemption = &mechanisms[0];
    assert!(preemption.on && preemption.activations > 0);
    assert_eq!(preemption.effects.len(), 1);
    let text = report::comparison(&subject, &lines) + &report::mechanisms(&mechanisms);
    let text = text + &tables::markdown(&subject, &records);
    assert!(
        text.contains("| llama-3.2-3b | 3+6 | agent-xpu |"),
        "{text}"
    );
    assert!(text.contains("no scheduler could pass"), "{text}");
    let json = serde_json::to_value(&lines[0]).unwrap();
    let fields = [
        "name", "model", "paper", "ours", "low", "high", "bound", "outcome", "reached", "standing",
    ];
    assert!(
        fields.iter().all(|field| json.get(field).is_some()),
        "{json}"
    );
}
