//! A registry that has the bundle, and devices with stores of their own.

use super::registry::Registry;
use crate::process::{finished, text};
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use tempfile::TempDir;
use xtask::workspace::{self, target_dir};

/// A registry that has the bundle under a name.
pub(super) struct World {
    heg: PathBuf,
    pub(super) bundle: PathBuf,
    registry: Registry,
    folder: TempDir,
}

/// A device: a store and a cache.
pub(super) struct Device<'w> {
    world: &'w World,
    folder: TempDir,
}

/// A command that has ended.
pub(super) struct Ended {
    /// Its lines of JSON.
    pub(super) lines: Vec<Value>,
    pub(super) seconds: f64,
}

impl World {
    /// Starts a registry and pushes the bundle, which is also left in memory.
    pub(super) fn new(heg: PathBuf, bundle: PathBuf) -> Result<Self> {
        let folder =
            TempDir::new_in(target_dir()).context("cannot make a folder for a registry")?;
        let registry = Registry::start(folder.path())?;
        let world = Self {
            heg,
            bundle,
            registry,
            folder,
        };
        world.push(&world.bundle)?;
        Ok(world)
    }

    pub(super) fn host(&self) -> &str {
        &self.registry.host
    }

    /// The bundle's name.
    pub(super) fn name(&self) -> String {
        format!("{}/{REPOSITORY}:{TAG}", self.host())
    }

    /// A folder for what a measurement writes.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn device(&self) -> Result<Device<'_>> {
        let folder = TempDir::new_in(target_dir()).context("cannot make a folder for a store")?;
        Ok(Device {
            world: self,
            folder,
        })
    }

    pub(super) fn push(&self, bundle: &Path) -> Result<()> {
        let device = self.device()?;
        device.ask(&["push", &text(bundle), &self.name(), "--json"])?;
        Ok(())
    }
}

impl Device<'_> {
    pub(super) fn command(&self) -> Command {
        let mut command = workspace::heg(&self.world.heg);
        command.env("HEG_STORE", self.folder.path().join("store"));
        command.env("HEG_CACHE_DIR", self.folder.path().join("cache"));
        command
    }

    /// Runs a command that prints lines of JSON.
    pub(super) fn ask(&self, arguments: &[&str]) -> Result<Ended> {
        let what = format!("heg {}", arguments.first().unwrap_or(&""));
        self.run(self.command().args(arguments), &what)
    }

    fn run(&self, command: &mut Command, what: &str) -> Result<Ended> {
        let begin = Instant::now();
        let done = finished(command, what)?;
        let seconds = begin.elapsed().as_secs_f64();
        let lines = done.text.lines().map(serde_json::from_str);
        let lines = lines
            .collect::<Result<_, _>>()
            .with_context(|| format!("{what} printed no JSON"))?;
        Ok(Ended { lines, seconds })
    }

    /// Pulls the bundle, with further options.
    pub(super) fn pull(&self, options: &[&str]) -> Result<Ended> {
        self.run(self.pulling().args(options), "heg pull")
    }

    /// The command of a pull.
    pub(super) fn pulling(&self) -> Command {
        let mut command = self.command();
        command.args(["pull", &self.world.name(), "--allow-unsigned", "--json"]);
        command
    }
}

impl Ended {
    /// A figure of the line whose event this is.
    pub(super) fn figure(&self, event: &str, key: &str) -> Option<u64> {
        let mut lines = self.lines.iter();
        let line = lines.find(|line| line.get("event").is_some_and(|found| found == event))?;
        line.get(key)?.as_u64()
    }
}

pub(super) const REPOSITORY: &str = "bench/model";
pub(super) const TAG: &str = "stable";
