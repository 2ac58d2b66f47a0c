//! The energy that the processor counts: Linux's `powercap` (Intel's and AMD's RAPL), domain by domain.
//!
//! A domain is a package, or its cores (`core`), its integrated GPU (`uncore`) or its memory (`dram`). Every process of
//! the machine is in it, and an NPU is in the package alone. Many systems let only root read the counters.

use std::fs;
use std::path::{Path, PathBuf};

/// Counters of energy, and what they counted since they were opened.
#[derive(Debug)]
pub struct EnergyMeter {
    domains: Vec<Domain>,
}

/// The energy of a domain.
#[derive(Debug, Clone, PartialEq)]
pub struct DomainEnergy {
    /// Name of the domain, as the system has it: `package-0`, `core`, `uncore`, `dram`.
    pub name: String,
    /// Energy since the meter was opened, in J.
    pub joules: f64,
}

#[derive(Debug)]
struct Domain {
    name: String,
    counter: PathBuf,
    /// Value at which the counter starts again from 0, in µJ.
    range_uj: u64,
    last_uj: u64,
    counted_uj: u64,
}

/// Folder of the counters on Linux.
const POWERCAP: &str = "/sys/class/powercap";

impl EnergyMeter {
    /// Opens the machine's counters; `None` if there are none, or none that this user may read.
    pub fn of_machine() -> Option<Self> {
        Self::open(Path::new(POWERCAP))
    }

    /// Opens the counters of a folder that is laid out as Linux's is.
    pub fn open(folder: &Path) -> Option<Self> {
        let mut zones: Vec<PathBuf> = fs::read_dir(folder)
            .ok()?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .collect();
        zones.sort();
        let domains: Vec<Domain> = zones.iter().filter_map(|zone| Domain::open(zone)).collect();
        (!domains.is_empty()).then_some(Self { domains })
    }

    /// Reads the counters. They begin anew after some hours at full power, which is noticed if they are read in between.
    pub fn read(&mut self) -> Vec<DomainEnergy> {
        let domains = self.domains.iter_mut();
        let read = domains.map(|domain| {
            domain.count();
            DomainEnergy {
                name: domain.name.clone(),
                joules: domain.counted_uj as f64 / 1e6,
            }
        });
        read.collect()
    }
}

impl Domain {
    fn open(zone: &Path) -> Option<Self> {
        // A second way to the same package is named by its registers.
        let folder = zone.file_name()?.to_str()?;
        if folder.starts_with("intel-rapl-mmio") {
            return None;
        }
        let counter = zone.join("energy_uj");
        let range_uj = number(&zone.join("max_energy_range_uj"))?;
        Some(Self {
            name: fs::read_to_string(zone.join("name"))
                .ok()?
                .trim()
                .to_owned(),
            last_uj: number(&counter)?,
            counter,
            range_uj,
            counted_uj: 0,
        })
    }

    /// Adds what was used since the last reading. A counter that cannot be read any more stands still.
    fn count(&mut self) {
        let Some(now_uj) = number(&self.counter) else {
            return;
        };
        let used_uj = match now_uj.checked_sub(self.last_uj) {
            Some(used_uj) => used_uj,
            None => self.range_uj.saturating_sub(self.last_uj) + now_uj,
        };
        self.counted_uj = self.counted_uj.saturating_add(used_uj);
        self.last_uj = now_uj;
    }
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a zone as Linux has it.
    fn zone(folder: &Path, zone: &str, name: &str, energy_uj: u64) {
        let zone = folder.join(zone);
        fs::create_dir_all(&zone).unwrap();
        fs::write(zone.join("name"), format!("{name}\n")).unwrap();
        fs::write(zone.join("max_energy_range_uj"), "262143328850\n").unwrap();
        fs::write(zone.join("energy_uj"), format!("{energy_uj}\n")).unwrap();
    }

    fn joules(meter: &mut EnergyMeter) -> Vec<(String, f64)> {
        let read = meter.read().into_iter();
        read.map(|it| (it.name, it.joules)).collect()
    }

    #[test]
    fn energy_is_counted_by_domain_from_the_opening_on() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        zone(folder, "intel-rapl:0", "package-0", 1_000_000);
        zone(folder, "intel-rapl:0:1", "uncore", 500_000);
        zone(folder, "intel-rapl-mmio:0", "package-0", 7);
        // The controller itself has no counter.
        fs::create_dir(folder.join("intel-rapl")).unwrap();
        let mut meter = EnergyMeter::open(folder).unwrap();
        let named = |package, uncore| {
            vec![
                ("package-0".to_owned(), package),
                ("uncore".to_owned(), uncore),
            ]
        };
        assert_eq!(joules(&mut meter), named(0.0, 0.0));
        zone(folder, "intel-rapl:0", "package-0", 3_500_000);
        zone(folder, "intel-rapl:0:1", "uncore", 750_000);
        assert_eq!(joules(&mut meter), named(2.5, 0.25));
    }

    #[test]
    fn a_counter_that_begins_anew_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        zone(folder.path(), "intel-rapl:0", "package-0", 262_143_328_850);
        let mut meter = EnergyMeter::open(folder.path()).unwrap();
        zone(folder.path(), "intel-rapl:0", "package-0", 4_000_000);
        assert_eq!(joules(&mut meter)[0].1, 4.0);
        // One that cannot be read stands still.
        fs::remove_file(folder.path().join("intel-rapl:0/energy_uj")).unwrap();
        assert_eq!(joules(&mut meter)[0].1, 4.0);
    }

    #[test]
    fn a_machine_without_counters_has_no_meter() {
        let folder = tempfile::tempdir().unwrap();
        assert!(EnergyMeter::open(folder.path()).is_none());
        assert!(EnergyMeter::open(&folder.path().join("none")).is_none());
        // Counters that only root may read are missing as well.
        fs::create_dir(folder.path().join("intel-rapl:0")).unwrap();
        fs::write(folder.path().join("intel-rapl:0/name"), "package-0\n").unwrap();
        assert!(EnergyMeter::open(folder.path()).is_none());
    }
}
