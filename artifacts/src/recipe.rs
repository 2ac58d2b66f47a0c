//! Recipes: the sections that a step of the compiler made, by its inputs.
//!
//! A recipe lets a second compile redo only what changed: its key is a hash of all inputs of a step (versions of the
//! code included), its content the list of the resulting sections. On disk it is a text of one line per section between
//! a version line and a hash of everything before. A file of any other form does not count as a recipe, and the step is
//! repeated.

use std::fmt;

use crate::content_id::SectionId;
use crate::manifest::Section;

/// blake3 of everything that determines the outcome of a step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecipeKey(SectionId);

impl RecipeKey {
    /// Returns the key of a step and its inputs. `step` names the code and its version (`quantise w8a16 1`); each input
    /// is hashed with its length, so that `["ab", "c"]` and `["a", "bc"]` differ. Large inputs are better given as
    /// their [`SectionId`].
    pub fn of<I>(step: &str, inputs: I) -> Self
    where
        I: IntoIterator,
        I::Item: AsRef<[u8]>,
    {
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        let mut update = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        update(step.as_bytes());
        for input in inputs {
            update(input.as_ref());
        }
        Self(hasher.finalize().into())
    }
}

impl fmt::Display for RecipeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for RecipeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecipeKey({})", self.0.short())
    }
}

/// The secret of machines that share a store. A section proves itself by its name, a recipe does not: without the secret
/// nobody can write one that a machine with it takes.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreKey([u8; blake3::KEY_LEN]);

impl StoreKey {
    /// The key that follows from a secret; the secret is as hard to guess as it is.
    pub fn of(secret: &[u8]) -> Self {
        Self(blake3::derive_key(STORE_KEY_CONTEXT, secret))
    }
}

impl fmt::Debug for StoreKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreKey(…)")
    }
}

/// The last line of a recipe: a hash of the text, or with a secret one of the recipe's own key as well, so that a recipe is
/// no other step's.
pub(crate) struct Seal<'s> {
    pub(crate) secret: Option<&'s StoreKey>,
    pub(crate) recipe: &'s RecipeKey,
}

impl Seal<'_> {
    fn of(&self, text: &str) -> SectionId {
        match self.secret {
            None => SectionId::of(text.as_bytes()),
            Some(StoreKey(secret)) => {
                let mut hasher = blake3::Hasher::new_keyed(secret);
                hasher.update(self.recipe.to_string().as_bytes());
                hasher.update(text.as_bytes());
                hasher.finalize().into()
            }
        }
    }
}

/// Returns the text of a recipe.
pub(crate) fn encode(sections: &[Section], seal: &Seal<'_>) -> String {
    let mut text = FIRST_LINE.to_owned();
    for Section { id, bytes } in sections {
        text.push_str(&format!("{id} {bytes}\n"));
    }
    let hash = seal.of(&text);
    text.push_str(&format!("{hash}\n"));
    text
}

/// Reads the output of [`encode`] with the same seal; `None` for anything else.
pub(crate) fn decode(text: &[u8], seal: &Seal<'_>) -> Option<Vec<Section>> {
    let text = std::str::from_utf8(text).ok()?;
    let body = &text[..text.strip_suffix('\n')?.rfind('\n')? + 1];
    let sections: Option<Vec<Section>> = body
        .strip_prefix(FIRST_LINE)?
        .lines()
        .map(decode_line)
        .collect();
    let sections = sections?;
    let expected = encode(&sections, seal);
    // Compared as hashes, since the time that this takes must not tell how much of a seal was right.
    let same = blake3::hash(expected.as_bytes()) == blake3::hash(text.as_bytes());
    same.then_some(sections)
}

fn decode_line(line: &str) -> Option<Section> {
    let (id, bytes) = line.split_once(' ')?;
    Some(Section {
        id: id.parse().ok()?,
        bytes: bytes.parse().ok()?,
    })
}

/// Separates keys from all other uses of blake3, which asks for a globally unique text.
const CONTEXT: &str = "heg-artifacts 2026 recipe key v1";

/// Separates the keys of stores from all other uses of blake3.
const STORE_KEY_CONTEXT: &str = "heg-artifacts 2026 store key v1";

/// The first line, with the version of the text below it.
const FIRST_LINE: &str = "heg recipe 1\n";

#[cfg(test)]
mod tests {
    use super::*;

    fn sections(count: u8) -> Vec<Section> {
        (0..count)
            .map(|byte| Section {
                id: SectionId::of(&[byte]),
                bytes: u64::from(byte) * 1000,
            })
            .collect()
    }

    fn step(name: &str) -> RecipeKey {
        RecipeKey::of(name, ["input"])
    }

    fn seals<'s>(secret: &'s StoreKey, recipe: &'s RecipeKey) -> [Seal<'s>; 2] {
        [None, Some(secret)].map(|secret| Seal { secret, recipe })
    }

    #[test]
    fn text_reads_back() {
        for seal in seals(&StoreKey::of(b"secret"), &step("a")) {
            for count in [0, 1, 7] {
                assert_eq!(
                    decode(encode(&sections(count), &seal).as_bytes(), &seal),
                    Some(sections(count))
                );
            }
        }
    }

    /// Without the secret nobody writes a recipe, and one of another step is not one of this.
    #[test]
    fn a_seal_is_of_one_secret_and_one_step() {
        let (secret, other) = (StoreKey::of(b"secret"), StoreKey::of(b"another"));
        let (a, b) = (step("a"), step("b"));
        let all = [
            (None, &a),
            (Some(&secret), &a),
            (Some(&secret), &b),
            (Some(&other), &a),
        ];
        let seals = all.map(|(secret, recipe)| Seal { secret, recipe });
        for (written, seal) in seals.iter().enumerate() {
            let text = encode(&sections(2), seal);
            for (read, seal) in seals.iter().enumerate() {
                let found = decode(text.as_bytes(), seal).is_some();
                assert_eq!(found, written == read, "{written} read as {read}");
            }
        }
        assert_eq!(format!("{secret:?}"), "StoreKey(…)");
    }

    #[test]
    fn every_flipped_byte_and_every_truncation_is_no_recipe() {
        for seal in seals(&StoreKey::of(b"secret"), &step("a")) {
            let text = encode(&sections(2), &seal).into_bytes();
            for position in 0..text.len() {
                assert_eq!(decode(&text[..position], &seal), None);
                for bit in 0..8 {
                    let mut broken = text.clone();
                    broken[position] ^= 1 << bit;
                    assert_eq!(decode(&broken, &seal), None);
                }
            }
            assert_eq!(decode(&vec![0; text.len()], &seal), None);
        }
    }

    #[test]
    fn keys_depend_on_every_boundary() {
        let keys = [
            RecipeKey::of("s", ["ab", "c"]),
            RecipeKey::of("s", ["a", "bc"]),
            RecipeKey::of("s", ["abc"]),
            RecipeKey::of("sabc", [""; 0]),
            RecipeKey::of("s", ["abc", ""]),
        ];
        for (index, key) in keys.iter().enumerate() {
            assert!(!keys[..index].contains(key));
        }
        assert_eq!(RecipeKey::of("s", ["x"]), RecipeKey::of("s", [b"x"]));
        assert_eq!(keys[0].to_string().len(), 64);
    }
}
