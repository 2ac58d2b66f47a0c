//! Names of bundles: the store where they are, and the commands that fetch, send, list and remove them.

mod fetch;
mod fit;
mod held;
mod known_answers;
mod npu;
mod progress;
mod send;

use std::error::Error;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use heg_artifacts::plain::escape;
use heg_runtime::ExitStatus;
use heg_ship::{
    Accepted, Credentials, DeviceStore, MachineTrust, ModelName, Replicas, ShipError,
    ShipErrorKind, Sources, now,
};
use heg_trust::TrustError;

use crate::failure::input;

/// The commands.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Say whether a registry's bundle fits this machine, before its weights are fetched
    Fit(fit::Fit),
    /// Fetch a bundle by its name from a registry
    Pull(fetch::Pull),
    /// Fetch what is newer of the names in the store
    Update(fetch::Update),
    /// Take a bundle from a file or a folder into the store
    Import(fetch::Import),
    /// Let a name stand for the bundle that it stood for before
    Rollback(held::Rollback),
    /// Show the names in the store, and the room that they take
    List(held::List),
    /// Forget a name; its bundle stays until `heg prune`
    Rm(held::Remove),
    /// Remove what no name needs
    Prune(held::Prune),
    /// Send bundles to a registry
    Push(send::Push),
    /// Write a bundle as a file, or as a folder that registries' tools take
    Export(send::Export),
    /// Write the statement of a release, to be signed with minisign
    Release(send::Release),
}

/// Runs a command.
pub(crate) fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Fit(arguments) => fit::fit(arguments),
        Command::Pull(arguments) => fetch::pull(arguments),
        Command::Update(arguments) => fetch::update(arguments),
        Command::Import(arguments) => fetch::import(arguments),
        Command::Rollback(arguments) => held::roll_back(arguments),
        Command::List(arguments) => held::list(arguments),
        Command::Rm(arguments) => held::remove(arguments),
        Command::Prune(arguments) => held::prune(arguments),
        Command::Push(arguments) => send::push(arguments),
        Command::Export(arguments) => send::export(arguments),
        Command::Release(arguments) => send::release(arguments),
    }
}

/// Access to registries.
#[derive(Args)]
struct Access {
    /// Ask this host without TLS; this machine is always asked so
    #[arg(long, value_name = "HOST")]
    plain_http: Vec<String>,
}

impl Access {
    /// The places that are asked for a name.
    fn places(&self, name: &ModelName) -> Result<Replicas, ShipError> {
        sources()?.of(name, &credentials(), &self.plain_http)
    }
}

/// The folder of the store: `HEG_STORE`, else the user's folder for data.
fn store_path() -> anyhow::Result<PathBuf> {
    let user = match cfg!(windows) {
        true => variable("LOCALAPPDATA"),
        false => {
            let home = || Some(variable("HOME")?.join(".local/share"));
            variable("XDG_DATA_HOME").or_else(home)
        }
    };
    let path = variable("HEG_STORE").or_else(|| Some(user?.join("heg")));
    path.ok_or_else(|| input("there is no folder for the store: set `HEG_STORE` to one"))
}

fn store() -> anyhow::Result<DeviceStore> {
    Ok(DeviceStore::open(&store_path()?)?)
}

/// The policy of this machine.
fn trust() -> Result<MachineTrust, ShipError> {
    MachineTrust::read(&configured("trust.ron"), now())
}

/// The aliases and mirrors of this machine.
fn sources() -> Result<Sources, ShipError> {
    Sources::read(&configured("sources.ron"))
}

/// The places of a file of settings: the system's before the user's.
fn configured(file: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    if cfg!(unix) {
        files.push(Path::new("/etc/heg").join(file));
    }
    let user = variable("XDG_CONFIG_HOME").or_else(|| match cfg!(windows) {
        true => variable("APPDATA"),
        false => Some(variable("HOME")?.join(".config")),
    });
    files.extend(user.map(|folder| folder.join("heg").join(file)));
    files
}

/// The files where Docker and Podman keep logins.
fn credentials() -> Credentials {
    let home = variable("HOME").or_else(|| variable("USERPROFILE"));
    let below = |folder: Option<PathBuf>, rest: &str| Some(folder?.join(rest));
    let files = [
        variable("REGISTRY_AUTH_FILE"),
        below(variable("XDG_RUNTIME_DIR"), "containers/auth.json"),
        below(home.clone(), ".config/containers/auth.json"),
        below(variable("DOCKER_CONFIG"), "config.json"),
        below(home, ".docker/config.json"),
    ];
    Credentials::in_files(files.into_iter().flatten().collect())
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

/// Returns the file of a bundle. A path that exists comes first if it has a slash or ends in `.heg`; then a name of the
/// store, if its publisher's word counts here; then any other path.
pub(crate) fn located(bundle: &Path) -> anyhow::Result<PathBuf> {
    let text = bundle.to_string_lossy();
    let is_path = text.contains(['/', '\\']) || text.ends_with(".heg");
    if is_path && bundle.exists() {
        trust()?.of_file(bundle)?;
        return Ok(bundle.to_owned());
    }
    // A user without a folder has no names; a path needs neither.
    let store = store_path().ok();
    let store = store.map(|path| DeviceStore::open_existing(&path));
    let store = store.transpose()?.flatten();
    let asked = asked(&text)?;
    let named = store.as_ref().map(|store| (store, store.meant(&asked)));
    match named {
        Some((store, Ok((name, record)))) => {
            let accepted = trust()?.at_open(store, &name, &record.now)?;
            print_warnings(&accepted);
            let path = store.bundle_path(record.now.bundle);
            Ok(path.ok_or_else(|| ShipError::NotHere {
                name: name.to_string(),
            })?)
        }
        Some((_, Err(error @ ShipError::Ambiguous { .. }))) => Err(error.into()),
        _ if is_name_alone(&text) && !bundle.exists() => Err(ShipError::NotHere {
            name: text.into_owned(),
        }
        .into()),
        _ => {
            if bundle.exists() {
                trust()?.of_file(bundle)?;
            }
            Ok(bundle.to_owned())
        }
    }
}

/// The name that an alias stands for; any other text as it is.
fn asked(text: &str) -> Result<String, ShipError> {
    let alias = sources()?.alias(text).map(ModelName::to_string);
    Ok(alias.unwrap_or_else(|| text.to_owned()))
}

/// Whether a text is the name of a registry's bundle, and not likely a path that was mistyped.
fn is_name_alone(text: &str) -> bool {
    let name = text.parse::<ModelName>();
    name.is_ok_and(|name| name.host().is_some()) && !text.ends_with(".heg")
}

fn print_warnings(accepted: &Accepted) {
    for warning in accepted.warnings() {
        eprintln!("warning: {}", escape(&warning.to_string()));
    }
}

/// Asks a person whether an unsigned bundle may be used: on a terminal, unless the command line says so.
fn agrees(allowed: bool) -> impl Fn(&TrustError) -> bool {
    move |error| {
        if allowed {
            return true;
        }
        if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
            return false;
        }
        eprint!(
            "{}\nuse it all the same? [y/N] ",
            escape(&error.to_string())
        );
        let _ = std::io::stderr().flush();
        let mut answer = String::new();
        let read = std::io::stdin().read_line(&mut answer);
        read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
    }
}

/// The exit status of an error of this module's crate.
pub(crate) fn status(error: &anyhow::Error) -> Option<ExitStatus> {
    let status = match error.downcast_ref::<ShipError>()?.kind() {
        ShipErrorKind::Input => ExitStatus::Input,
        ShipErrorKind::Bundle => ExitStatus::Incompatible,
        ShipErrorKind::Environment | ShipErrorKind::Finding => ExitStatus::Environment,
    };
    Some(status)
}

/// Whether an error is what a check found.
pub(crate) fn is_finding(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<ShipError>();
    error.is_some_and(|error| error.kind() == ShipErrorKind::Finding)
}

/// Advice about a cause.
pub(crate) fn hint(cause: &(dyn Error + 'static)) -> Option<&'static str> {
    match cause.downcast_ref::<TrustError>()? {
        TrustError::Older { .. } => {
            Some("`heg rollback NAME` goes back to a bundle that was here, on purpose")
        }
        TrustError::AskUnsigned { .. } => {
            Some("`--allow-unsigned` agrees for this name; `trust.ron` says whose word counts")
        }
        TrustError::Withdrawn { .. } => Some("`heg update` fetches a newer release"),
        _ => None,
    }
}
