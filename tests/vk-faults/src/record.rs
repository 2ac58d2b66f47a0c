//! Records: what the layer did, and what devices were asked for, a line each in a file that tests read.

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// Numbers of calls of a device, and of its objects at the end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VkCounts {
    /// Submissions.
    pub submissions: u64,
    /// Waits for the timeline.
    pub waits: u64,
    /// Allocations of memory.
    pub allocations: u64,
    /// Bytes of these, without imported pages.
    pub allocated_bytes: u64,
    /// Bytes of imported pages.
    pub imported_bytes: u64,
    /// Pipelines that were made.
    pub pipelines: u64,
    /// Memories that were not freed.
    pub memories_left: u64,
    /// Buffers that were not destroyed.
    pub buffers_left: u64,
    /// Pipelines that were not destroyed.
    pub pipelines_left: u64,
    /// Shader modules that were not destroyed.
    pub modules_left: u64,
    /// Command buffers that were not freed one by one.
    pub commands_left: u64,
}

/// A line of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VkEntry {
    /// Vulkan was asked for the machine's devices.
    Instance,
    /// A device was made.
    Device,
    /// A fault happened.
    Fault {
        /// Its name.
        name: String,
        /// Number of the submissions before it.
        submission: u64,
    },
    /// A device was destroyed.
    End(VkCounts),
}

impl VkEntry {
    /// Reads a record; lines of another form are left out, as a process may have died while it wrote one.
    ///
    /// # Errors
    ///
    /// Error of the file system. A file that is missing is an empty record.
    pub fn read(path: &Path) -> std::io::Result<Vec<Self>> {
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(text.lines().filter_map(Self::parse).collect()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Adds this line to a file. A record that cannot be written is missed by the test that reads it.
    pub(crate) fn append(&self, path: &Path) {
        let file = File::options().create(true).append(true).open(path);
        if let Ok(mut file) = file {
            // One call, so that lines of several devices do not mix.
            let _ = file.write_all(format!("{self}\n").as_bytes());
        }
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        match words.next()? {
            "instance" => Some(Self::Instance),
            "device" => Some(Self::Device),
            "fault" => Some(Self::Fault {
                name: words.next()?.to_owned(),
                submission: words.next()?.parse().ok()?,
            }),
            "end" => {
                let mut counts = VkCounts::default();
                for (_, own) in counts.fields() {
                    *own = words.next()?.parse().ok()?;
                }
                Some(Self::End(counts))
            }
            _ => None,
        }
    }
}

impl VkCounts {
    /// Objects that were left, but for the command buffer that ends every submission, which goes with its pool.
    pub fn left(&self) -> u64 {
        let Self {
            memories_left,
            buffers_left,
            pipelines_left,
            modules_left,
            commands_left,
            ..
        } = self;
        let commands = commands_left.saturating_sub(1);
        memories_left + buffers_left + pipelines_left + modules_left + commands
    }

    /// The numbers with their names, in the order of a record.
    fn fields(&mut self) -> [(&'static str, &mut u64); 11] {
        [
            ("submissions", &mut self.submissions),
            ("waits", &mut self.waits),
            ("allocations", &mut self.allocations),
            ("allocated bytes", &mut self.allocated_bytes),
            ("imported bytes", &mut self.imported_bytes),
            ("pipelines", &mut self.pipelines),
            ("memories left", &mut self.memories_left),
            ("buffers left", &mut self.buffers_left),
            ("pipelines left", &mut self.pipelines_left),
            ("modules left", &mut self.modules_left),
            ("commands left", &mut self.commands_left),
        ]
    }
}

impl fmt::Display for VkEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Instance => f.write_str("instance"),
            Self::Device => f.write_str("device"),
            Self::Fault { name, submission } => write!(f, "fault {name} {submission}"),
            Self::End(counts) => {
                f.write_str("end")?;
                let mut counts = *counts;
                let mut fields = counts.fields().into_iter();
                fields.try_for_each(|(_, number)| write!(f, " {number}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_as_they_were_written() {
        let mut counts = VkCounts::default();
        for (index, (_, number)) in counts.fields().into_iter().enumerate() {
            *number = index as u64;
        }
        assert_eq!(counts.left(), 6 + 7 + 8 + 9 + 9);
        let fault = VkEntry::Fault {
            name: "late".to_owned(),
            submission: 3,
        };
        for entry in [
            VkEntry::Instance,
            VkEntry::Device,
            fault,
            VkEntry::End(counts),
        ] {
            assert_eq!(VkEntry::parse(&entry.to_string()), Some(entry));
        }
        assert_eq!(VkEntry::parse("end 1 2"), None);
        assert_eq!(VkEntry::parse("fault late"), None);
    }
}
