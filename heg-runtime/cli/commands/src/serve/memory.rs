//! The memory of a server, which its models share: for keys and values, and for bundles.

use heg_runtime::Loaded;
use heg_runtime::engine::{ResidentBudget, Stay};
use heg_spec::policy::Limits;

use super::Arguments;
use crate::failure::input;

/// A model's part of the memory for keys and values, in proportion to what its longest context takes there.
#[derive(Debug, Clone, Copy)]
pub(super) struct KvPart {
    /// Bytes of the model's longest context.
    bytes: u64,
    /// Bytes of the longest contexts of all models, which this part is among.
    of_bytes: u64,
    models: u32,
}

impl KvPart {
    /// The parts of models, in their order.
    pub(super) fn of_each<'l>(all: impl Iterator<Item = &'l Loaded>) -> Vec<Self> {
        let bytes: Vec<u64> = all.map(longest_context_bytes).collect();
        Self::of_bytes(&bytes)
    }

    fn of_bytes(all: &[u64]) -> Vec<Self> {
        let of_bytes = all.iter().fold(0, |sum: u64, it| sum.saturating_add(*it));
        let models = u32::try_from(all.len()).unwrap_or(u32::MAX);
        let parts = all.iter().map(|bytes| Self {
            bytes: *bytes,
            of_bytes,
            models,
        });
        parts.collect()
    }

    /// Bounds a model's memory by its part of what a policy has for all.
    pub(super) fn bound(self, limits: &mut Limits) {
        // At least 1 MiB each.
        let others = limits.kv_mib.saturating_sub(self.models);
        limits.kv_mib = self.of_mib(others).saturating_add(1);
        limits.flash_mib = self.of_mib(limits.flash_mib);
    }

    fn of_mib(self, mib: u32) -> u32 {
        let part = u128::from(mib) * u128::from(self.bytes) / u128::from(self.of_bytes.max(1));
        u32::try_from(part).unwrap_or(mib)
    }
}

/// Bytes of keys and values of a model's longest context.
fn longest_context_bytes(loaded: &Loaded) -> u64 {
    let manifest = loaded.bundle().manifest();
    let of_token = manifest.heg.decode.widest_cache_bytes();
    of_token.saturating_mul(manifest.model.context_tokens.into())
}

impl Arguments {
    /// Refuses less memory for keys and values than the least part of each model.
    pub(super) fn check_kv(&self) -> anyhow::Result<()> {
        let models = self.others.len() + 1;
        match self.kv_mib {
            Some(asked) if (asked.get() as usize) < models => Err(input(format!(
                "--kv-mib {asked} is too little for {models} bundles: expected at least 1 MiB for each"
            ))),
            _ => Ok(()),
        }
    }

    /// Memory for keys and values of all models, in MiB, where a policy has `policy_mib` for them.
    pub(super) fn kv_mib(&self, policy_mib: u32) -> u32 {
        match self.kv_mib {
            Some(asked) => asked.get(),
            None => policy_mib.min(memory_mib().map_or(u32::MAX, |all| all / 4)),
        }
    }

    /// The memory that bundles share.
    pub(super) fn resident(&self) -> ResidentBudget {
        let bytes = self.resident_mib.map(|mib| u64::from(mib.get()) << 20);
        bytes.map_or_else(ResidentBudget::default, ResidentBudget::of_bytes)
    }

    /// The time for which a bundle stays in memory.
    pub(super) fn stay(&self, loaded: &Loaded) -> Stay {
        match self.pin.contains(&loaded.bundle().manifest().model.name) {
            true => Stay::Pinned,
            false => Stay::WhileNeeded,
        }
    }

    /// Refuses pins of models that are not served, and memory that does not hold what is pinned and any other bundle.
    pub(super) fn check_residents<'l>(
        &self,
        all: impl Iterator<Item = &'l Loaded>,
    ) -> anyhow::Result<()> {
        let Some(mib) = self.resident_mib else {
            return Ok(());
        };
        let (mut missing, mut pinned, mut largest) = (self.pin.clone(), 0, 0);
        for loaded in all {
            let bytes = loaded.bundle().mapping().len() as u64;
            missing.retain(|name| *name != loaded.bundle().manifest().model.name);
            match self.stay(loaded) {
                Stay::Pinned => pinned += bytes,
                Stay::WhileNeeded => largest = bytes.max(largest),
            }
        }
        if let Some(name) = missing.first() {
            return Err(input(format!(
                "--pin {name}: no model of this server has that name"
            )));
        }
        let [needed, pinned] = [pinned + largest, pinned].map(|bytes| bytes.div_ceil(1 << 20));
        match needed <= u64::from(mib.get()) {
            true => Ok(()),
            false => Err(input(format!(
                "--resident-mib {mib} is too little for these bundles: expected at least {needed}, for the {pinned} that are \
                 pinned and the largest other one"
            ))),
        }
    }
}

/// Returns the memory of the machine, in MiB; `None` if the system does not say.
fn memory_mib() -> Option<u32> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    u32::try_from(kibibytes / 1024).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use heg_runtime::read_policy;

    /// MiB for keys and values, and of flash, that models get of `kv_mib` and `flash_mib`.
    fn parts(kv_mib: u32, flash_mib: u32, contexts: &[u64]) -> Vec<[u32; 2]> {
        let parts = KvPart::of_bytes(contexts).into_iter().map(|part| {
            let mut limits = read_policy("agent-xpu").unwrap().limits;
            (limits.kv_mib, limits.flash_mib) = (kv_mib, flash_mib);
            part.bound(&mut limits);
            [limits.kv_mib, limits.flash_mib]
        });
        parts.collect()
    }

    #[test]
    fn a_model_alone_has_all() {
        assert_eq!(parts(1024, 300, &[7 << 20]), [[1024, 300]]);
        assert_eq!(parts(1, 0, &[7 << 20]), [[1, 0]]);
    }

    #[test]
    fn models_have_memory_for_as_much_of_a_context_each() {
        let found = parts(1003, 100, &[600 << 20, 300 << 20, 100 << 20]);
        assert_eq!(found, [[601, 60], [301, 30], [101, 10]]);
    }

    #[test]
    fn the_smallest_model_has_a_mebibyte_and_all_have_no_more_than_there_is() {
        assert_eq!(parts(2, 1, &[1 << 40, 1]), [[1, 0], [1, 0]]);
        assert_eq!(parts(1000, 9, &[u64::MAX, 1]), [[999, 9], [1, 0]]);
        assert_eq!(parts(4, 0, &[0, 0]), [[1, 0], [1, 0]]);
    }
}
