//! An attack: its requests, its model, another client's requests beside it, and the time that its sender has.

use super::models::Model;
use super::other::Ask;
use super::scene::Scene;
use anyhow::Result;
use serde::Serialize;
use serde_json::{Map, Value};
use std::time::Duration;

/// A hostile client, or a hostile model.
pub(super) struct Attack {
    /// Name for `--only`.
    pub(super) name: &'static str,
    /// The audit's script that found it.
    pub(super) script: &'static str,
    /// A short description.
    pub(super) about: &'static str,
    pub(super) model: Model,
    /// Options of `heg serve`.
    pub(super) options: Vec<&'static str>,
    /// Largest number of open files and connections for the server.
    pub(super) files: u64,
    /// Whether clients have tokens; without them the server refuses foreign hosts.
    pub(super) tokens: bool,
    /// The other client's request.
    pub(super) ask: Ask,
    /// Time budget or deadline of the attacker's requests; `None` if they may wait for their turn.
    pub(super) budget: Option<Duration>,
    /// Time from the start of the attack to the other client's first request.
    pub(super) lead: Duration,
    /// Largest number of rounds, for an attack that takes long to build up.
    pub(super) rounds_max: usize,
    /// Whether the attack ends the server, as a shutdown does.
    pub(super) ends_server: bool,
    pub(super) act: Act,
}

/// The course of an attack.
pub(super) enum Act {
    /// Runs until the scene is over, while another client is measured.
    Beside(Load),
    /// Ends by itself and returns its findings.
    Steps(Steps),
    /// Serves a changed tiny-agent and sends it texts; the changed model may also be refused before.
    Folder(FolderChange),
}

/// An attack that runs until it is told to end.
pub(super) type Load = Box<dyn Fn(&Scene<'_>) + Send + Sync>;

/// An attack that checks answers.
pub(super) type Steps = Box<dyn Fn(&Scene<'_>) -> Result<Vec<Finding>> + Send + Sync>;

/// A change of a model folder's small files.
pub(super) type FolderChange = Box<dyn Fn(&mut TextAssets) + Send + Sync>;

/// The files of a model folder that process text.
#[derive(Debug, Default)]
pub(super) struct TextAssets {
    /// Content of `tokenizer.json`.
    pub(super) tokenizer: Map<String, Value>,
    /// Content of `chat_template.jinja`.
    pub(super) template: String,
}

/// A claim about the server, and whether it held.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Finding {
    pub(super) claim: String,
    pub(super) held: bool,
    /// The answer or figure behind the finding.
    pub(super) seen: String,
}

impl Finding {
    pub(super) fn new(claim: impl Into<String>, held: bool, seen: impl Into<String>) -> Self {
        Self {
            claim: claim.into(),
            held,
            seen: seen.into(),
        }
    }
}

impl Attack {
    /// Makes an attack on tiny-agent while another client chats; `about` is a short description.
    pub(super) fn new(
        name: &'static str,
        script: &'static str,
        about: &'static str,
        act: Act,
    ) -> Self {
        Self {
            name,
            script,
            about,
            model: Model::TinyAgent,
            options: Vec::new(),
            files: FILES,
            tokens: true,
            ask: Ask::Chat(1),
            budget: None,
            lead: Duration::from_millis(300),
            rounds_max: usize::MAX,
            ends_server: false,
            act,
        }
    }

    /// Makes an attack that runs beside another client.
    pub(super) fn beside(
        name: &'static str,
        script: &'static str,
        about: &'static str,
        load: impl Fn(&Scene<'_>) + Send + Sync + 'static,
    ) -> Self {
        Self::new(name, script, about, Act::Beside(Box::new(load)))
    }

    /// Makes an attack of steps that end by themselves.
    pub(super) fn steps(
        name: &'static str,
        script: &'static str,
        about: &'static str,
        steps: impl Fn(&Scene<'_>) -> Result<Vec<Finding>> + Send + Sync + 'static,
    ) -> Self {
        Self::new(name, script, about, Act::Steps(Box::new(steps)))
    }
}

/// Posts bodies in turn to a path, over several connections at once, each as soon as the previous one is answered.
pub(super) fn posting(
    path: &'static str,
    connections: usize,
    bodies: &[Value],
) -> impl Fn(&Scene<'_>) + Send + Sync + use<> {
    let requests: Vec<Vec<u8>> = bodies
        .iter()
        .map(|body| Scene::request(path, body))
        .collect();
    move |scene| {
        std::thread::scope(|scope| {
            for _ in 0..connections {
                scope.spawn(|| {
                    let mut turns = requests.iter().cycle();
                    while let (false, Some(request)) = (scene.is_over(), turns.next()) {
                        scene.ask(request);
                    }
                });
            }
        });
    }
}

/// Path of chat completions.
pub(super) const CHAT: &str = "/v1/chat/completions";

/// Path of completions.
pub(super) const COMPLETIONS: &str = "/v1/completions";

/// Chosen: room for the floods' connections.
const FILES: u64 = 8192;
