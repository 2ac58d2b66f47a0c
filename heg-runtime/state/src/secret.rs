//! The secret of a folder, and the names that are made with it.

use std::fmt;

use crate::page::PageHead;

/// 32 random bytes that a folder has of its own. Names and seals of its pages are keyed hashes with it: without it,
/// nobody can tell from a name which prompt a page belongs to.
#[derive(Clone)]
pub struct Secret {
    owners: [u8; 32],
    names: [u8; 32],
    seals: [u8; 32],
}

/// The owner of a prompt, as it is known in every run: a client's name or token, or that of its user. It is kept as a
/// hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateOwner([u8; 32]);

/// An owner as a folder knows it: a keyed hash, which means nothing in another folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerTag(pub(crate) [u8; 32]);

/// The name of a page's file: `<16 digits of the owner>-<64 digits of the page>.kv`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageName(String);

impl StateOwner {
    /// Makes an owner of a kind of identity and its value, such as `client` and a name.
    pub fn new(kind: &str, identity: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("heg kept state 1: owner");
        hasher.update(&(kind.len() as u64).to_le_bytes());
        hasher.update(kind.as_bytes());
        hasher.update(identity);
        Self(*hasher.finalize().as_bytes())
    }

    /// The user of this process: for commands that serve nobody else.
    pub fn this_user() -> Self {
        Self::new("user", b"")
    }
}

impl Secret {
    /// Makes the keys of a folder from its random bytes.
    pub fn new(random: &[u8; Self::BYTES]) -> Self {
        Self {
            owners: blake3::derive_key("heg kept state 1: owners of a folder", random),
            names: blake3::derive_key("heg kept state 1: names of pages", random),
            seals: blake3::derive_key("heg kept state 1: seals of pages", random),
        }
    }

    /// Length of the random bytes.
    pub const BYTES: usize = 32;

    /// Returns an owner as this folder knows it.
    pub fn owner(&self, owner: StateOwner) -> OwnerTag {
        OwnerTag(*blake3::keyed_hash(&self.owners, &owner.0).as_bytes())
    }

    /// Returns the hash of a page's head, which its name is made of and the page behind it names.
    pub(crate) fn link(&self, head: &PageHead) -> [u8; 32] {
        *blake3::keyed_hash(&self.names, &head.identity()).as_bytes()
    }

    /// Returns the seal of a page: of its head and its content.
    pub(crate) fn seal(&self, head: &PageHead, payload: &[u8]) -> [u8; 32] {
        *self.sealing(head).update(payload).finalize().as_bytes()
    }

    /// Begins the seal of a page: its content is still to be hashed.
    pub(crate) fn sealing(&self, head: &PageHead) -> blake3::Hasher {
        let mut hasher = blake3::Hasher::new_keyed(&self.seals);
        hasher.update(&head.identity());
        hasher
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl OwnerTag {
    /// The digits that names of its pages begin with.
    pub fn short(&self) -> String {
        hex(&self.0[..OWNER_DIGITS / 2])
    }
}

impl PageName {
    pub(crate) fn new(owner: &OwnerTag, link: &[u8; 32]) -> Self {
        Self(format!("{}-{}{SUFFIX}", owner.short(), hex(link)))
    }

    /// Returns the name if it is one of a page.
    pub fn parse(name: &str) -> Option<Self> {
        let (owner, link) = name.strip_suffix(SUFFIX)?.split_once('-')?;
        let is_hex = |text: &str| text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let fits = owner.len() == OWNER_DIGITS && link.len() == 64;
        (fits && is_hex(owner) && is_hex(link)).then(|| Self(name.to_owned()))
    }

    /// The name as a text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The digits of its owner.
    pub fn owner(&self) -> &str {
        self.0.get(..OWNER_DIGITS).unwrap_or(&self.0)
    }

    /// The digits of its head's hash, which the page behind it names.
    pub fn link(&self) -> &str {
        let digits = OWNER_DIGITS + 1..self.0.len() - SUFFIX.len();
        self.0.get(digits).unwrap_or(&self.0)
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Digits of an owner in a name. Chosen: no two owners of one folder have the same by chance.
const OWNER_DIGITS: usize = 16;

const SUFFIX: &str = ".kv";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_pages_and_of_nothing_else_are_read() {
        let owner = Secret::new(&[1; 32]).owner(StateOwner::this_user());
        let name = PageName::new(&owner, &[7; 32]);
        assert_eq!(PageName::parse(name.as_str()), Some(name.clone()));
        assert_eq!(name.owner(), owner.short());
        for other in ["", ".kv", "-.kv", "key", "lock", "tmp-1-2", "../x.kv"] {
            assert_eq!(PageName::parse(other), None, "{other}");
        }
        let upper = name.as_str().to_uppercase();
        assert_eq!(PageName::parse(&upper), None);
    }

    #[test]
    fn an_owner_is_another_in_another_folder_and_of_another_kind() {
        let (here, there) = (Secret::new(&[1; 32]), Secret::new(&[2; 32]));
        let ann = StateOwner::new("client", b"ann");
        assert_ne!(here.owner(ann), there.owner(ann));
        assert_ne!(
            here.owner(ann),
            here.owner(StateOwner::new("token", b"ann"))
        );
        // What ends a kind does not begin an identity.
        assert_ne!(StateOwner::new("ab", b"c"), StateOwner::new("a", b"bc"));
        assert_eq!(format!("{here:?}"), "Secret(…)");
    }
}
