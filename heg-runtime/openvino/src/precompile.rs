//! The protocol between a compiler and its worker processes that make blobs for an NPU.
//!
//! Intel's NPU compiler is a library that may crash, hang, or exist for another operating system
//! only. So it runs in processes of its own, `heg-npu-worker`, which read jobs from standard input
//! and answer on standard output, a line each. Both sides use the lines defined here. A worker is
//! started in the folder of its jobs and files are plain names in it, so no path has to be
//! translated between systems.
//!
//! Fields are separated by tabs; within a field `\\`, `\t`, `\n` and `\r` are escapes. Answers begin
//! with [`MARK`]: other lines are output of the libraries themselves, and are ignored here.

use std::fmt;
use std::time::Duration;

/// Version of the protocol below, which a worker sends first, so that an outdated worker is not
/// taken for one that works.
pub const PROTOCOL: u32 = 1;

/// First field of each answer.
pub const MARK: &str = "heg-npu";

/// One model to compile for one NPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Id of the job, which the answer repeats.
    pub id: u64,
    /// Name of the file with the IR's text.
    pub ir: String,
    /// Name of the file with its constants; empty if there are none.
    pub constants: String,
    /// Name of the file to write, which appears only when it is complete.
    pub blob: String,
    /// NPU platform, the value of `NPU_PLATFORM`.
    pub platform: u32,
    /// Further properties of the NPU device.
    pub properties: Vec<(String, String)>,
}

/// A message from a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// OpenVINO is loaded; sent once, before anything else.
    Ready {
        /// Version of OpenVINO with its build number.
        version: String,
        /// The system for which the worker was built, as in [`std::env::consts::OS`].
        system: String,
    },
    /// OpenVINO cannot be loaded, and the worker ends; sent instead of `Ready`.
    Unusable {
        /// The reason.
        message: String,
    },
    /// The blob was written.
    Done {
        /// The job.
        id: u64,
        /// Time from reading the job to this answer.
        took: Duration,
    },
    /// The job cannot be done. The worker takes the next one.
    Failed {
        /// The job.
        id: u64,
        /// OpenVINO's message, with its line breaks.
        message: String,
    },
}

impl Job {
    /// Parses a line without its end; `None` if it is not a job.
    pub fn parse(line: &str) -> Option<Self> {
        let fields = fields(line)?;
        let [word, id, ir, constants, blob, platform, properties @ ..] = fields.as_slice() else {
            return None;
        };
        if word != "job" {
            return None;
        }
        let pair = |field: &String| {
            let (key, value) = field.split_once('=')?;
            Some((key.to_owned(), value.to_owned()))
        };
        Some(Self {
            id: id.parse().ok()?,
            ir: ir.clone(),
            constants: constants.clone(),
            blob: blob.clone(),
            platform: platform.parse().ok()?,
            properties: properties.iter().map(pair).collect::<Option<_>>()?,
        })
    }
}

impl fmt::Display for Job {
    /// Writes the line, without its end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job\t{}", self.id)?;
        for file in [&self.ir, &self.constants, &self.blob] {
            write!(f, "\t{}", escape(file))?;
        }
        write!(f, "\t{}", self.platform)?;
        for (key, value) in &self.properties {
            write!(f, "\t{}={}", escape(key), escape(value))?;
        }
        Ok(())
    }
}

impl Answer {
    /// Parses a line without its end; `None` if it is not an answer.
    pub fn parse(line: &str) -> Option<Self> {
        let fields = fields(line)?;
        let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
        match *fields.as_slice() {
            [MARK, "ready", protocol, version, system]
                if protocol.parse::<u32>() == Ok(PROTOCOL) =>
            {
                Some(Self::Ready {
                    version: version.to_owned(),
                    system: system.to_owned(),
                })
            }
            [MARK, "unusable", message] => Some(Self::Unusable {
                message: message.to_owned(),
            }),
            [MARK, "done", id, ms] => Some(Self::Done {
                id: id.parse().ok()?,
                took: Duration::from_millis(ms.parse().ok()?),
            }),
            [MARK, "failed", id, message] => Some(Self::Failed {
                id: id.parse().ok()?,
                message: message.to_owned(),
            }),
            _ => None,
        }
    }
}

impl fmt::Display for Answer {
    /// Writes the line, without its end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready { version, system } => {
                let (version, system) = (escape(version), escape(system));
                write!(f, "{MARK}\tready\t{PROTOCOL}\t{version}\t{system}")
            }
            Self::Unusable { message } => write!(f, "{MARK}\tunusable\t{}", escape(message)),
            Self::Done { id, took } => write!(f, "{MARK}\tdone\t{id}\t{}", took.as_millis()),
            Self::Failed { id, message } => write!(f, "{MARK}\tfailed\t{id}\t{}", escape(message)),
        }
    }
}

fn fields(line: &str) -> Option<Vec<String>> {
    line.split('\t').map(unescape).collect()
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('\t', "\\t")
        .replace('\n', "\\n")
        .replace('\r', "\\r")
}

fn unescape(field: &str) -> Option<String> {
    let mut text = String::with_capacity(field.len());
    let mut characters = field.chars();
    while let Some(character) = characters.next() {
        text.push(match character {
            '\\' => match characters.next()? {
                '\\' => '\\',
                't' => '\t',
                'n' => '\n',
                'r' => '\r',
                _ => return None,
            },
            other => other,
        });
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NASTY: &str = "a\\n\tb\r\n\\ c = ü\n";

    #[test]
    fn answers_read_back_and_are_one_line() {
        let message = NASTY.to_owned();
        let answers = [
            Answer::Ready {
                version: message.clone(),
                system: "windows".to_owned(),
            },
            Answer::Unusable {
                message: message.clone(),
            },
            Answer::Done {
                id: u64::MAX,
                took: Duration::from_millis(1791),
            },
            Answer::Failed { id: 3, message },
        ];
        for answer in answers {
            let line = answer.to_string();
            assert!(!line.contains(['\n', '\r']), "{line}");
            assert_eq!(Answer::parse(&line), Some(answer), "{line}");
        }
    }

    #[test]
    fn jobs_read_back_and_are_one_line() {
        let mut job = Job {
            id: 7,
            ir: NASTY.to_owned(),
            constants: String::new(),
            blob: "7.blob".to_owned(),
            platform: 3720,
            properties: Vec::new(),
        };
        for _ in 0..2 {
            let line = job.to_string();
            assert!(!line.contains(['\n', '\r']), "{line}");
            assert_eq!(Job::parse(&line).as_ref(), Some(&job), "{line}");
            let property = ("KEY".to_owned(), NASTY.to_owned());
            job.properties = vec![property.clone(), property];
        }
    }

    #[test]
    fn anything_else_is_neither() {
        for line in [
            "",
            "job\t7\ta\tb\tc",
            "job\tseven\ta\tb\tc\t3720",
            "job\t7\ta\tb\tc\t3720\tno value",
            "job\t7\ta\\x\tb\tc\t3720",
            "job\t7\ta\tb\tc\\",
            "heg-npu\tready\t0\t2026.4.1\twindows",
            "heg-npu\tdone\t7",
            "heg-npu\tdone\t7\t12\t",
            "heg-npu\tfailed\t-1\tmessage",
            "[ERROR] the compiler says something",
        ] {
            assert_eq!(Job::parse(line), None, "{line}");
            assert_eq!(Answer::parse(line), None, "{line}");
        }
    }
}
