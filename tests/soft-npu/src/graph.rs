//! Graphs: blobs that the device took.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::abi::{
    Code, INVALID_ARGUMENT, INVALID_NATIVE_BINARY, INVALID_NULL_POINTER, INVALID_SIZE,
    OUT_OF_DEVICE_MEMORY, Outcome, UNSUPPORTED_VERSION,
};
use crate::blob::{BlobFacts, BlobPort};
use crate::compute::Recipe;
use crate::fault::{FaultPoint, fails};
use crate::handles::Handles;
use crate::log::{lock, note};
use crate::memory::region_of;
use crate::pages::{PAGE_BYTES, can_be_pinned};
use crate::settings::{MachinePart, has};

/// A blob that the device took.
pub(crate) struct Graph {
    pub(crate) facts: BlobFacts,
    pub(crate) backing: Backing,
    /// Its computation, or the reason why that is not known: then it gives zeros, which known answers refuse.
    pub(crate) recipe: Result<Recipe, String>,
    /// Addresses of ports, for lists that are recorded from now on.
    arguments: Mutex<Vec<usize>>,
    /// Whether the device had no room for it. The plugin does not look, so that it fails when it is to run.
    is_broken: AtomicBool,
}

/// The memory from which the device reads a blob's bytes (driver, `level_zero_driver/source/ext/graph.cpp`, `getBlobContainerNative`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backing {
    /// In a buffer that the caller had lent before.
    Lent,
    /// In the caller's pages, which the driver pinned for it.
    Imported,
    /// In a copy.
    Copied,
}

/// Graphs that callers hold.
pub(crate) static GRAPHS: Handles<Graph> = Handles::new();

impl Graph {
    /// Takes a blob.
    ///
    /// # Errors
    ///
    /// [`INVALID_NULL_POINTER`] and [`INVALID_SIZE`] if there are no bytes, [`INVALID_NATIVE_BINARY`] if they are no
    /// blob, [`UNSUPPORTED_VERSION`] and [`OUT_OF_DEVICE_MEMORY`] by a fault.
    pub(crate) fn create(bytes: &[u8], is_persistent: bool) -> Result<Self, Code> {
        if bytes.is_empty() {
            return Err(INVALID_SIZE);
        }
        if fails(FaultPoint::Create) {
            return Err(UNSUPPORTED_VERSION);
        }
        if fails(FaultPoint::CreateBinary) {
            return Err(INVALID_NATIVE_BINARY);
        }
        if fails(FaultPoint::CreateMemory) {
            return Err(OUT_OF_DEVICE_MEMORY);
        }
        let facts = BlobFacts::read(bytes).map_err(|error| {
            note!("REFUSED blob: {error}");
            INVALID_NATIVE_BINARY
        })?;
        let backing = backing(bytes, is_persistent);
        note!(
            "graph {} of={} ports={} backing={backing:?}",
            facts.name,
            facts.platform,
            facts.ports.len()
        );
        let recipe = Recipe::of(bytes, &facts).map_err(|error| {
            note!("NO RECIPE graph={}: {error}", facts.name);
            error.to_string()
        });
        Ok(Self {
            arguments: Mutex::new(vec![0; facts.ports.len()]),
            facts,
            backing,
            recipe,
            is_broken: AtomicBool::new(false),
        })
    }

    /// Name of the kernel, for the log and for given times.
    pub(crate) fn kernel(&self) -> &str {
        match &self.recipe {
            Ok(recipe) => recipe.kernel(),
            Err(_) => &self.facts.name,
        }
    }

    /// A port by its index.
    ///
    /// # Errors
    ///
    /// [`INVALID_ARGUMENT`] if there are fewer.
    pub(crate) fn port(&self, index: u32) -> Result<&BlobPort, Code> {
        let port = self.facts.ports.get(index as usize);
        port.ok_or(INVALID_ARGUMENT)
    }

    /// Sets the address of a port, for lists that are recorded from now on (driver, `graph.cpp`, `setArgumentValue`).
    ///
    /// # Errors
    ///
    /// [`INVALID_NULL_POINTER`] for null, and [`INVALID_ARGUMENT`] if there are fewer ports.
    pub(crate) fn set(&self, index: u32, address: usize) -> Outcome {
        if address == 0 {
            return Err(INVALID_NULL_POINTER);
        }
        let mut arguments = lock(&self.arguments);
        let argument = arguments.get_mut(index as usize);
        *argument.ok_or(INVALID_ARGUMENT)? = address;
        Ok(())
    }

    /// Addresses of all ports.
    pub(crate) fn arguments(&self) -> Vec<usize> {
        lock(&self.arguments).clone()
    }

    /// Brings it to the device.
    ///
    /// # Errors
    ///
    /// [`OUT_OF_DEVICE_MEMORY`] by a fault; it cannot run then.
    pub(crate) fn initialize(&self) -> Outcome {
        if fails(FaultPoint::Initialize) {
            self.is_broken.store(true, Ordering::Relaxed);
            return Err(OUT_OF_DEVICE_MEMORY);
        }
        Ok(())
    }

    /// Whether it could not be brought to the device.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Relaxed)
    }
}

/// Persistent bytes are read in place if they are in a lent buffer, or if their pages can be pinned, whole pages around
/// them included (driver, `vpu_device_context.cpp`, `createBufferObjectFromUserPtr`).
fn backing(bytes: &[u8], is_persistent: bool) -> Backing {
    if !is_persistent {
        return Backing::Copied;
    }
    let start = bytes.as_ptr().addr();
    if region_of(start).is_ok() {
        return Backing::Lent;
    }
    let first = start - start % PAGE_BYTES;
    let length = (start - first).saturating_add(bytes.len());
    let length = length.checked_next_multiple_of(PAGE_BYTES);
    let can_be_imported = has(MachinePart::PageImport)
        && length.is_some_and(|length| can_be_pinned(first, length, false));
    match can_be_imported {
        true => Backing::Imported,
        false => Backing::Copied,
    }
}
