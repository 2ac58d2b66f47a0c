//! Worlds of faults: processes are killed at any operation, pages are torn, changed and exchanged, the disk is full,
//! the clock jumps, two processes use one folder. Never is a page used that is not what the model computed, never does
//! the folder exceed its budget, and always does everything end.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use heg_state::{KeptLimits, PAGE_TOKENS, PageName, Secret, StateFolder, StateOwner};

use crate::pages::{PAYLOAD_BYTES, keep, model, recall};
use crate::world::{Dice, World, WorldDisk};

const PAGE_BYTES: u64 = 4096 + PAYLOAD_BYTES as u64;

/// Worlds that are tried if `HEG_STATE_WORLDS` does not say how many.
const WORLDS: u64 = 3000;

/// Counts over all worlds, to see that they are worth the time.
#[derive(Debug, Default)]
struct Seen {
    found_pages: u64,
    misses: u64,
    written: u64,
    given_up: u64,
    kills: u64,
    refused: u64,
}

/// A process with an open folder.
struct Process {
    disk: WorldDisk,
    folder: StateFolder,
}

struct Play {
    world: Arc<Mutex<World>>,
    dice: Dice,
    limits: KeptLimits,
    processes: [Option<Process>; 2],
}

#[test]
fn in_no_world_is_a_page_used_that_was_not_computed() {
    let worlds = std::env::var("HEG_STATE_WORLDS").ok();
    let worlds = worlds.map_or(WORLDS, |worlds| worlds.parse().expect("a number of worlds"));
    let mut seen = Seen::default();
    for seed in 0..worlds {
        play(seed, &mut seen);
    }
    println!("{worlds} worlds: {seen:?}");
    // A world without faults would be no test.
    assert!(
        seen.found_pages > worlds && seen.misses > worlds / 10,
        "{seen:?}"
    );
    assert!(
        seen.kills > worlds / 2 && seen.given_up > worlds / 10,
        "{seen:?}"
    );
}

fn play(seed: u64, seen: &mut Seen) {
    let mut dice = Dice(seed ^ 0x5eed);
    let pages = 1 + dice.below(12);
    let mut play = Play {
        world: Arc::new(Mutex::new(World::new(seed))),
        limits: KeptLimits {
            budget_bytes: pages * PAGE_BYTES + dice.below(2) * 17,
            age_max: Duration::from_secs(1000),
        },
        dice,
        processes: [None, None],
    };
    for _ in 0..30 {
        play.step(seen);
        play.check(seed);
    }
}

/// Prompts share beginnings, so that pages of different prompts are the same, or differ in their last token.
fn prompt(dice: &mut Dice) -> Vec<u32> {
    let tokens = PAGE_TOKENS as u64 * dice.below(6) + dice.below(PAGE_TOKENS as u64);
    let mut tokens: Vec<u32> = (0..tokens as u32).map(|at| at * 3).collect();
    let changed = dice.below(tokens.len() as u64 * 2 + 1) as usize;
    if let Some(token) = tokens.get_mut(changed) {
        *token += 1 + dice.below(2) as u32;
    }
    tokens
}

impl Play {
    fn step(&mut self, seen: &mut Seen) {
        match self.dice.below(12) {
            0 => self.spoil(),
            1 => self.pass_time(),
            _ => self.work(seen),
        }
    }

    /// Lets one of the processes do something; starts it if it was killed.
    fn work(&mut self, seen: &mut Seen) {
        let at = self.dice.below(2) as usize;
        let disk = WorldDisk::new(&self.world, at);
        if self.processes[at].is_none() {
            let opened = StateFolder::on(Box::new(disk.clone()), self.limits);
            seen.refused += u64::from(opened.is_err());
            self.processes[at] = opened.ok().map(|folder| Process { disk, folder });
        }
        let Some(Process { disk, folder }) = &self.processes[at] else {
            return;
        };
        let model = model(self.dice.below(3) as u8);
        let owner = StateOwner::new("client", &[self.dice.below(3) as u8]);
        let tokens = prompt(&mut self.dice);
        if self.dice.one_in(2) {
            match keep(folder, &model, owner, &tokens) {
                Ok(end) => {
                    seen.written += end.pages;
                    seen.given_up += end.given_up;
                }
                Err(_) => seen.refused += 1,
            }
        } else {
            match recall(folder, &model, owner, &tokens) {
                Ok(tokens) => seen.found_pages += (tokens / PAGE_TOKENS) as u64,
                Err(_) => seen.misses += 1,
            }
        }
        if disk.is_killed() || self.dice.one_in(20) {
            seen.kills += u64::from(disk.is_killed());
            self.processes[at] = None;
        }
    }

    /// Changes, cuts, exchanges or removes a file.
    fn spoil(&mut self) {
        let mut world = self.world.lock().unwrap();
        let names: Vec<String> = world.files.keys().cloned().collect();
        let pick = |dice: &mut Dice| names.get(dice.below(names.len() as u64) as usize).cloned();
        let (Some(name), Some(other)) = (pick(&mut self.dice), pick(&mut self.dice)) else {
            return;
        };
        let kind = self.dice.below(4);
        let replaced = world.files.get(&other).cloned();
        let Some((bytes, _)) = world.files.get_mut(&name) else {
            return;
        };
        let at = self.dice.below(bytes.len() as u64 + 1) as usize;
        match kind {
            0 if at < bytes.len() => bytes[at] ^= 1 << self.dice.below(8),
            1 => bytes.truncate(at),
            // A page of another name. Nobody can keep others from making a file longer.
            2 if PageName::parse(&name).is_some() && PageName::parse(&other).is_some() => {
                let length = bytes.len();
                *bytes = replaced.map_or(Vec::new(), |(bytes, _)| bytes);
                bytes.truncate(length);
            }
            _ => drop(world.files.remove(&name)),
        }
    }

    /// Lets time pass, or the clock go back.
    fn pass_time(&mut self) {
        let mut world = self.world.lock().unwrap();
        let span = Duration::from_secs([1, 400, 2000, 1 << 31][self.dice.below(4) as usize]);
        world.now = match self.dice.one_in(3) {
            true => world.now - span.min(Duration::from_secs(1 << 30)),
            false => world.now + span.min(Duration::from_secs(2000)),
        };
    }

    fn check(&self, seed: u64) {
        let world = self.world.lock().unwrap();
        let counted = world
            .files
            .iter()
            .filter(|(name, _)| !name.ends_with(".key"));
        let bytes: u64 = counted.map(|(_, (bytes, _))| bytes.len() as u64).sum();
        // The folder's secret, or what a killed process left of it, is beside the budget.
        let budget = self.limits.budget_bytes + Secret::BYTES as u64;
        assert!(
            bytes <= budget,
            "world {seed}: {bytes} bytes, budget {budget}"
        );
    }
}
