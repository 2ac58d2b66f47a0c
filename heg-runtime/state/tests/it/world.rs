//! A disk in memory that several processes use, and that fails as a world's dice say.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use heg_state::{Disk, DiskFile, Lock};

/// Dice with a seed (SplitMix64).
#[derive(Debug, Clone)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, many: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % many.max(1)
    }

    pub(crate) fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }
}

/// Files, a clock, and the odds of faults.
pub(crate) struct World {
    pub(crate) files: BTreeMap<String, (Vec<u8>, SystemTime)>,
    pub(crate) now: SystemTime,
    /// Bytes that the disk has room for.
    pub(crate) capacity: usize,
    /// One of this many operations fails in some way.
    pub(crate) odds: u64,
    pub(crate) dice: Dice,
    /// The process that has the lock.
    locked: Option<usize>,
    names: u64,
    /// Processes that were killed, by number.
    killed: Vec<usize>,
}

/// A process's view of the disk.
#[derive(Clone)]
pub(crate) struct WorldDisk {
    world: Arc<Mutex<World>>,
    process: usize,
}

/// The ways in which an operation may end.
enum Fate {
    Good,
    Error,
    /// The process is killed in the midst of it.
    Killed,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        Self {
            files: BTreeMap::new(),
            now: UNIX_EPOCH + Duration::from_secs(1_800_000_000),
            capacity: 4096 * (4 + dice.below(40) as usize),
            odds: [4, 15, 60, u64::MAX][dice.below(4) as usize],
            dice,
            locked: None,
            names: 0,
            killed: Vec::new(),
        }
    }

    fn used(&self) -> usize {
        self.files.values().map(|(bytes, _)| bytes.len()).sum()
    }

    fn fate(&mut self) -> Fate {
        match self.dice.one_in(self.odds) {
            false => Fate::Good,
            true if self.dice.one_in(2) => Fate::Error,
            true => Fate::Killed,
        }
    }
}

impl WorldDisk {
    pub(crate) fn new(world: &Arc<Mutex<World>>, process: usize) -> Self {
        let world = Arc::clone(world);
        world
            .lock()
            .unwrap()
            .killed
            .retain(|killed| *killed != process);
        Self { world, process }
    }

    pub(crate) fn is_killed(&self) -> bool {
        self.world.lock().unwrap().killed.contains(&self.process)
    }

    /// Begins an operation; a killed process does nothing any more.
    fn begin(&self) -> io::Result<(MutexGuard<'_, World>, Fate)> {
        let mut world = self.world.lock().unwrap();
        if world.killed.contains(&self.process) {
            return Err(io::Error::other("killed"));
        }
        let fate = world.fate();
        Ok((world, fate))
    }

    /// Does an operation as a whole, or not at all.
    fn whole<T>(&self, operation: impl FnOnce(&mut World) -> T) -> io::Result<T> {
        let (mut world, fate) = self.begin()?;
        match fate {
            Fate::Good => Ok(operation(&mut world)),
            Fate::Error => Err(io::Error::other("an error of the device")),
            Fate::Killed => {
                if world.dice.one_in(2) {
                    operation(&mut world);
                }
                self.kill(&mut world);
                Err(io::Error::other("killed"))
            }
        }
    }

    fn kill(&self, world: &mut World) {
        world.killed.push(self.process);
        world.locked = world.locked.filter(|holder| *holder != self.process);
    }
}

impl Disk for WorldDisk {
    fn now(&self) -> SystemTime {
        self.world.lock().unwrap().now
    }

    fn list(&self) -> io::Result<Vec<DiskFile>> {
        self.whole(|world| {
            let file = |(name, (bytes, used)): (&String, &(Vec<u8>, SystemTime))| DiskFile {
                name: name.clone(),
                bytes: bytes.len() as u64,
                used: *used,
            };
            world.files.iter().map(file).collect()
        })
    }

    fn read_into(&self, name: &str, most: usize, into: &mut Vec<u8>) -> io::Result<bool> {
        self.whole(|world| {
            let Some((bytes, _)) = world.files.get(name) else {
                return false;
            };
            into.clear();
            into.extend(&bytes[..bytes.len().min(most)]);
            true
        })
    }

    fn open(&self, _: &str) -> io::Result<Option<File>> {
        Ok(None)
    }

    fn write(&self, name: &str, parts: &[&[u8]], used: SystemTime) -> io::Result<()> {
        let bytes = parts.concat();
        let (mut world, fate) = self.begin()?;
        if world.used() + bytes.len() > world.capacity {
            return Err(io::ErrorKind::StorageFull.into());
        }
        match fate {
            Fate::Good => drop(world.files.insert(name.to_owned(), (bytes, used))),
            Fate::Error => return Err(io::Error::other("an error of the device")),
            Fate::Killed => {
                let written = world.dice.below(bytes.len() as u64 + 1) as usize;
                match world.dice.below(3) {
                    // Before it had its name.
                    0 => {
                        world.names += 1;
                        let left = format!("tmp-{}-{}", self.process, world.names);
                        world.files.insert(left, (bytes[..written].to_vec(), used));
                    }
                    1 => drop(world.files.insert(name.to_owned(), (bytes, used))),
                    // The power went, and the device had lied about what it had synced.
                    _ => {
                        let mut torn = bytes;
                        torn[written..].fill(0);
                        world.files.insert(name.to_owned(), (torn, used));
                    }
                }
                self.kill(&mut world);
                return Err(io::Error::other("killed"));
            }
        }
        Ok(())
    }

    fn touch(&self, name: &str, used: SystemTime) -> io::Result<()> {
        self.whole(|world| {
            if let Some((_, at)) = world.files.get_mut(name) {
                *at = used;
            }
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.whole(|world| drop(world.files.remove(name)))
    }

    fn remove_leftovers(&self) -> io::Result<()> {
        self.whole(|world| world.files.retain(|name, _| !name.starts_with("tmp-")))
    }

    fn lock(&self) -> io::Result<Option<Lock>> {
        let (mut world, fate) = self.begin()?;
        if matches!(fate, Fate::Error) {
            return Err(io::Error::other("an error of the device"));
        }
        assert_eq!(world.locked, None, "the lock was not given back");
        world.locked = Some(self.process);
        drop(world);
        Ok(Some(Lock::new(Held(self.clone()))))
    }
}

struct Held(WorldDisk);

impl Drop for Held {
    fn drop(&mut self) {
        let mut world = self.0.world.lock().unwrap();
        let process = self.0.process;
        world.locked = world.locked.filter(|holder| *holder != process);
    }
}
