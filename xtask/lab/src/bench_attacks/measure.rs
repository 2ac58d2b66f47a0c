//! Measures one attack: blocks of the other client's requests, alone and beside it in turns, the memory of all the
//! server's processes, and the processor time used after the sender has gone.

use super::attack::{Act, Attack, Finding, FolderChange, Load};
use super::models::{self, Compiled};
use super::other::{Block, BlockEnd};
use super::scene::{Scene, Sent};
use super::server::{AttackedServer, Start};
use super::tree::MemoryWatch;
use super::verdict::GONE_BUSY_MS_MAX;
use anyhow::Result;
use serde_json::json;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};
use xtask::workspace::note;

/// Settings of a run, the same for all attacks.
#[derive(Debug, Clone)]
pub(super) struct Bounds {
    pub(super) heg: PathBuf,
    pub(super) rounds: usize,
    /// Number of requests in a block.
    pub(super) requests: usize,
    pub(super) address_gib: u64,
}

/// All measurements of one attack.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    pub(super) alone: Vec<Block>,
    pub(super) beside: Vec<Block>,
    /// The attacker's requests.
    pub(super) sent: Vec<Sent>,
    pub(super) findings: Vec<Finding>,
    /// The server's memory after a few answered requests, in bytes.
    pub(super) baseline_bytes: u64,
    /// Its largest memory during the attack, in bytes; 0 if no server was started.
    pub(super) peak_bytes: u64,
    /// Processor time in each span from 100 to 300 ms after the sender has gone, in ms.
    pub(super) gone_busy_ms: Vec<f64>,
    /// The way in which the server ended during the attack.
    pub(super) died: Option<String>,
}

/// Measures one attack.
pub(super) fn measure(attack: &Attack, bounds: &Bounds) -> Result<Seen> {
    match &attack.act {
        Act::Folder(change) => of_folder(attack, change, bounds),
        Act::Beside(load) => {
            let start = start(attack, bounds, attack.model.bundle()?);
            in_rounds(attack, load, bounds, &start)
        }
        Act::Steps(steps) => {
            let start = start(attack, bounds, attack.model.bundle()?);
            in_steps(attack, &start, steps)
        }
    }
}

fn start(attack: &Attack, bounds: &Bounds, bundle: PathBuf) -> Start {
    let own = attack.options.iter().map(|option| (*option).to_owned());
    let memory = ["--kv-mib".to_owned(), KV_MIB.to_string()];
    let flash = ["--flash-mib".to_owned(), "0".to_owned()];
    Start {
        heg: bounds.heg.clone(),
        bundle,
        options: memory.into_iter().chain(flash).chain(own).collect(),
        address_gib: bounds.address_gib,
        files: attack.files,
        tokens: attack.tokens,
    }
}

/// Memory of each server for KV caches, in MiB: enough for the longest context of each model.
pub(super) const KV_MIB: u64 = 64;

/// Measures alone and beside the attack in turns, so that a temporary slowdown of the machine affects both.
fn in_rounds(attack: &Attack, load: &Load, bounds: &Bounds, start: &Start) -> Result<Seen> {
    let rounds = bounds.rounds.min(attack.rounds_max).max(1);
    let mut server = start.server()?;
    let block = |span: Duration| BlockEnd {
        requests: bounds.requests,
        span,
    };
    let mut seen = Seen::default();
    // The work of a first request is done before anything is measured.
    attack.ask.block(server.port(), block(WARM_UP));
    seen.baseline_bytes = server.tree().anonymous_bytes();
    let watch = MemoryWatch::start(server.tree());
    let left = ATTACK_SPAN.saturating_sub(attack.lead * u32::try_from(rounds)?);
    let end = block(left / u32::try_from(rounds)?);
    for round in 1..=rounds {
        note(format!("{}: round {round} of {rounds}", attack.name));
        seen.alone
            .push(attack.ask.block(server.port(), block(ALONE_SPAN)));
        let scene = Scene::new(&server, start);
        let beside = thread::scope(|scope| {
            scope.spawn(|| load(&scene));
            thread::sleep(attack.lead);
            let beside = attack.ask.block(server.port(), end);
            // A form that takes its whole budget is answered by then, and can be judged.
            let answered = attack.budget.unwrap_or_default().min(ANSWERED_SPAN);
            thread::sleep(answered);
            scene.end();
            beside
        });
        seen.beside.push(beside);
        seen.sent.extend(scene.sent());
        seen.gone_busy_ms.push(gone_busy_ms(&server));
        seen.died = server.ending();
        // While work of a sender that has gone continues, no measurement would be alone.
        if seen.died.is_some() || !is_settled(&server) {
            break;
        }
    }
    conclude(&mut seen, &mut server, &watch);
    Ok(seen)
}

fn in_steps(
    attack: &Attack,
    start: &Start,
    steps: &dyn Fn(&Scene<'_>) -> Result<Vec<Finding>>,
) -> Result<Seen> {
    note(format!("{}: its steps", attack.name));
    let mut server = start.server()?;
    let mut seen = Seen {
        baseline_bytes: server.tree().anonymous_bytes(),
        ..Seen::default()
    };
    let watch = MemoryWatch::start(server.tree());
    let scene = Scene::new(&server, start);
    // A server that does not answer is the finding.
    seen.findings = steps(&scene).unwrap_or_else(|error| {
        vec![Finding::new(
            "every step is answered",
            false,
            format!("{error:#}"),
        )]
    });
    scene.end();
    seen.sent = scene.sent();
    if !attack.ends_server {
        seen.gone_busy_ms.push(gone_busy_ms(&server));
        conclude(&mut seen, &mut server, &watch);
    } else {
        seen.peak_bytes = watch.peak_bytes();
    }
    Ok(seen)
}

/// Compiles and serves a hostile folder, unless it is refused earlier.
fn of_folder(attack: &Attack, change: &FolderChange, bounds: &Bounds) -> Result<Seen> {
    note(format!("{}: compiling", attack.name));
    let claim = "the folder compiles, or is refused with status 2 or 3";
    let bundle = match models::hostile(attack.name, change)? {
        Compiled::Bundle(bundle) => bundle,
        Compiled::Refused { status, said } => {
            let held = matches!(status, Some(2 | 3));
            let seen = format!("status {status:?}: {said}");
            return Ok(Seen::of(Finding::new(claim, held, seen)));
        }
        Compiled::TooLong => {
            return Ok(Seen::of(Finding::new(
                claim,
                false,
                "it took more than a minute",
            )));
        }
    };
    let start = start(attack, bounds, bundle);
    let mut server = match start.server() {
        Ok(server) => server,
        Err(error) => {
            let seen = format!("{error:#}");
            let held = ["status 2:", "status 3:"]
                .iter()
                .any(|it| seen.contains(it));
            let claim = "the bundle is served, or refused with status 2 or 3";
            return Ok(Seen::of(Finding::new(claim, held, seen)));
        }
    };
    let mut seen = Seen {
        baseline_bytes: server.tree().anonymous_bytes(),
        ..Seen::default()
    };
    let watch = MemoryWatch::start(server.tree());
    let scene = Scene::new(&server, &start);
    thread::scope(|scope| {
        scope.spawn(|| {
            for text in TEXTS.map(|text| text()) {
                let body = json!({
                    "messages": [{ "role": "user", "content": text }], "max_tokens": 1,
                });
                if !scene.is_over() {
                    scene.ask(&Scene::request(super::attack::CHAT, &body));
                }
            }
            scene.end();
        });
        let begin = Instant::now();
        while !scene.is_over() && begin.elapsed() < ATTACK_SPAN / 2 {
            thread::sleep(Duration::from_millis(20));
        }
        scene.end();
    });
    seen.sent = scene.sent();
    seen.gone_busy_ms.push(gone_busy_ms(&server));
    conclude(&mut seen, &mut server, &watch);
    Ok(seen)
}

/// Messages that trigger the audit's hostile tokenizers, and one that does not.
const TEXTS: [fn() -> String; 4] = [
    || "hi".to_owned(),
    || "a".repeat(3000),
    || format!("{}c", "a".repeat(28)),
    || format!("{}x", " ".repeat(4000)),
];

impl Seen {
    /// An attack that ended with a single finding.
    fn of(finding: Finding) -> Self {
        Self {
            findings: vec![finding],
            ..Self::default()
        }
    }
}

/// Processor time of the server's processes after the moment at which work for a gone sender must have ended.
fn gone_busy_ms(server: &AttackedServer) -> f64 {
    thread::sleep(GONE_AFTER);
    server.tree().busy_ms(GONE_SPAN)
}

/// The time within which work for a gone sender must end.
const GONE_AFTER: Duration = Duration::from_millis(100);
const GONE_SPAN: Duration = Duration::from_millis(200);

/// Waits for a limited time until the server is idle. Returns whether it is.
fn is_settled(server: &AttackedServer) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < SETTLE_SPAN {
        if server.tree().busy_ms(GONE_SPAN) <= GONE_BUSY_MS_MAX {
            return true;
        }
    }
    false
}

fn conclude(seen: &mut Seen, server: &mut AttackedServer, watch: &MemoryWatch) {
    seen.peak_bytes = watch.peak_bytes();
    seen.died = seen.died.take().or_else(|| server.ending());
    if seen.died.is_none() && !server.is_answering() {
        // Busy, or about to end: give it the time that an old server needs to run out of memory.
        is_settled(server);
        seen.died = server.ending();
        if seen.died.is_none() && !server.is_answering() {
            seen.died = Some("answers no health check".to_owned());
        }
    }
    if seen.died.is_some() {
        note(format!("the server's last words: {}", server.last_words()));
    }
}

/// Duration of the other client's requests before anything is measured.
const WARM_UP: Duration = Duration::from_secs(1);

/// Longest duration of a block alone.
const ALONE_SPAN: Duration = Duration::from_secs(4);

/// Longest duration of one attack's blocks beside it, all rounds together.
const ATTACK_SPAN: Duration = Duration::from_secs(36);

/// Longest extension of an attack that waits for the sender's own answers.
const ANSWERED_SPAN: Duration = Duration::from_secs(3);

/// Longest time that a server may take to become idle before the next round.
const SETTLE_SPAN: Duration = Duration::from_secs(5);
