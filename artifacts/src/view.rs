//! A view: the list of parts that, mapped side by side, are a bundle.
//!
//! A store keeps each part once, whatever bundles it belongs to, and a view for each bundle. [`Mapping`](crate::Mapping)
//! opens a view as it opens a file: bytes, offsets and hashes are those of the file. Parts are named by their content,
//! so a view holds no path, and whoever writes one can reach nothing but parts.
//!
//! ```text
//! STORE/views/VIEW             this file
//! STORE/parts/ab/abcdef…       the parts that it names
//! ```

use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::layout::ALIGNMENT;
use crate::parts::{FilePart, PartId};

/// The parts of a bundle, in file order.
///
/// Invariants: there is at least one part; each has a length above zero, a multiple of 4096; their sum fits an `i64`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    parts: Vec<ViewPart>,
}

/// A part of a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViewPart {
    /// Name of the part.
    pub id: PartId,
    /// Its length in bytes, padding included.
    pub bytes: u64,
}

impl View {
    /// The view of a bundle that was cut into parts.
    ///
    /// Errors: [`Error::View`] for parts that no bundle has.
    pub fn of(parts: &[FilePart]) -> Result<Self, Error> {
        let parts = parts.iter().map(|part| ViewPart {
            id: part.id,
            bytes: part.range.end.saturating_sub(part.range.start),
        });
        Self::checked(parts.collect())
    }

    /// Reads a view that came from somewhere.
    ///
    /// Errors: [`Error::View`] with the first line that is wrong.
    pub fn parse(text: &[u8]) -> Result<Self, Error> {
        let wrong = |line: usize, found: &str, expected: &'static str| Error::View {
            line,
            found: found.chars().take(FOUND_CHARS_MAX).collect(),
            expected,
        };
        if text.len() as u64 > VIEW_BYTES_MAX {
            let found = format!("{} bytes", text.len());
            return Err(wrong(1, &found, "a view of at most 1 MiB"));
        }
        let text = std::str::from_utf8(text).map_err(|_| wrong(1, "binary data", "UTF-8"))?;
        let mut lines = text.lines().zip(1..);
        let first = lines.next().map_or("", |(line, _)| line);
        if first != FIRST_LINE {
            return Err(wrong(1, first, "`heg view 1`: use a newer `heg`"));
        }
        let mut parts = Vec::new();
        for (line, number) in lines {
            let part = parse_part(line);
            let expected = "the id of a part, a blank, and its length in bytes";
            parts.push(part.ok_or_else(|| wrong(number, line, expected))?);
        }
        Self::checked(parts)
    }

    fn checked(parts: Vec<ViewPart>) -> Result<Self, Error> {
        let wrong = |line: usize, found: u64, expected: &'static str| Error::View {
            line,
            found: format!("{found} bytes"),
            expected,
        };
        let mut sum = 0_u64;
        for (part, line) in parts.iter().zip(2..) {
            if part.bytes == 0 || !part.bytes.is_multiple_of(ALIGNMENT) {
                return Err(wrong(line, part.bytes, "a multiple of 4096 above zero"));
            }
            sum = sum
                .checked_add(part.bytes)
                .filter(|sum| i64::try_from(*sum).is_ok())
                .ok_or_else(|| wrong(line, part.bytes, "parts whose sum can be mapped"))?;
        }
        match parts.is_empty() {
            true => Err(wrong(2, 0, "at least one part")),
            false => Ok(Self { parts }),
        }
    }

    /// The text of the view.
    pub fn to_text(&self) -> String {
        let mut text = format!("{FIRST_LINE}\n");
        for part in &self.parts {
            // Writing to a string never fails.
            let _ = writeln!(text, "{} {}", part.id, part.bytes);
        }
        text
    }

    /// The parts, in file order.
    pub fn parts(&self) -> &[ViewPart] {
        &self.parts
    }

    /// Length of the bundle, in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// Whether a file that begins so is a view.
    pub fn is_view(first_bytes: &[u8]) -> bool {
        first_bytes.starts_with(VIEW_MAGIC)
    }
}

impl PartId {
    /// The file of a part in the folder `parts` of a store.
    pub fn path_in(&self, parts: &Path) -> PathBuf {
        let name = self.to_string();
        let folder = name.get(..2).unwrap_or_default();
        parts.join(folder).join(&name)
    }
}

fn parse_part(line: &str) -> Option<ViewPart> {
    let (id, bytes) = line.split_once(' ')?;
    let is_plain = bytes.bytes().all(|byte| byte.is_ascii_digit());
    let bytes = bytes.parse().ok().filter(|_| is_plain)?;
    let id = id.parse().ok()?;
    Some(ViewPart { id, bytes })
}

/// First bytes of every view.
pub(crate) const VIEW_MAGIC: &[u8] = b"heg view ";

/// Longest view that is read, in bytes: 13 000 parts. Chosen: the writer's order has at most [`PARTS_MAX`](crate::PARTS_MAX).
pub const VIEW_BYTES_MAX: u64 = 1 << 20;

const FIRST_LINE: &str = "heg view 1";

/// Most characters of a wrong line that an error quotes.
const FOUND_CHARS_MAX: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content_id::SectionId;
    use crate::manifest::Section;

    fn id(byte: u8) -> PartId {
        PartId::of_sections(&[Section {
            id: SectionId::of(&[byte]),
            bytes: 1,
        }])
    }

    fn refused(text: &str) -> String {
        View::parse(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn a_view_is_read_as_it_was_written() {
        let parts = [(1, 4096), (2, 8192)].map(|(byte, bytes)| ViewPart {
            id: id(byte),
            bytes,
        });
        let view = View::checked(parts.to_vec()).unwrap();
        let text = view.to_text();
        assert!(View::is_view(text.as_bytes()));
        assert_eq!(View::parse(text.as_bytes()).unwrap(), view);
        assert_eq!(view.file_bytes(), 12288);
        let path = id(1).path_in(Path::new("parts"));
        let name = id(1).to_string();
        assert_eq!(path, Path::new("parts").join(&name[..2]).join(&name));
    }

    #[test]
    fn what_no_store_writes_is_refused_with_its_line() {
        let id = id(1);
        let large = i64::MAX as u64 / 4096 * 4096;
        let refused = [
            "heg view 2\n".to_owned(),
            "heg view 1\n".to_owned(),
            "heg view 1\n../../etc/passwd 4096\n".to_owned(),
            format!("heg view 1\n{id} 4095\n"),
            format!("heg view 1\n{id} 0\n"),
            format!("heg view 1\n{id} +4096\n"),
            format!("heg view 1\n{id} {large}\n{id} {large}\n"),
        ]
        .map(|text| refused(&text));
        insta::assert_snapshot!(
            "refused_views",
            refused.join("\n").replace(&id.to_string(), "ID")
        );
    }
}
