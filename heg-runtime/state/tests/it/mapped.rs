//! Pages of a real folder that are mapped where they go: checked there, and copied only where mapping is not possible.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::sync::Mutex;
use std::time::Duration;

use heg_state::{HEAD_BYTES, KeptLimits, Miss, PAGE_TOKENS, PageRoom, StateFolder, StateOwner};

use crate::pages::{content, keep, model};

const LIMITS: KeptLimits = KeptLimits {
    budget_bytes: 30 * 4400,
    age_max: Duration::from_secs(3600),
};

/// Maps pages below a number, by reading them, and notes what is done to which.
struct Room {
    mapped_below: usize,
    mapped: Mutex<Vec<(usize, Vec<u8>)>>,
    copied: Mutex<Vec<usize>>,
}

impl Room {
    fn new(mapped_below: usize) -> Self {
        Self {
            mapped_below,
            mapped: Mutex::default(),
            copied: Mutex::default(),
        }
    }
}

impl PageRoom for Room {
    fn map(&self, page: usize, mut file: &File, see: &mut dyn FnMut(&[u8])) -> bool {
        let mut rows = Vec::new();
        file.seek(SeekFrom::Start(HEAD_BYTES as u64)).unwrap();
        file.read_to_end(&mut rows).unwrap();
        // In pieces, as the halves of layers are.
        rows.chunks(16).for_each(see);
        if page < self.mapped_below {
            self.mapped.lock().unwrap().push((page, rows));
        }
        page < self.mapped_below
    }

    fn copy(&self, page: usize, _: &[u8]) -> bool {
        self.copied.lock().unwrap().push(page);
        true
    }
}

#[test]
fn a_page_is_mapped_or_copied_and_a_damaged_one_is_neither() {
    let above = tempfile::tempdir().unwrap();
    let path = above.path().join("state");
    let folder = StateFolder::open(&path, LIMITS).unwrap();
    let (owner, model) = (StateOwner::this_user(), model(1));
    let tokens: Vec<u32> = (0..4 * PAGE_TOKENS as u32).collect();
    keep(&folder, &model, owner, &tokens).unwrap();
    let (prefix, _) = folder.find(&model, owner, &tokens);
    let room = Room::new(3);
    folder.read(&prefix, prefix.tokens(), &room).unwrap();
    let mut mapped = room.mapped.into_inner().unwrap();
    mapped.sort();
    let expected = (0..3).map(|page| (page, content(&model, &tokens, page)));
    assert_eq!(mapped, expected.collect::<Vec<_>>());
    assert_eq!(room.copied.into_inner().unwrap(), [3]);
    for (damage, is_seal) in [("a bit of a row", true), ("a row too few", false)] {
        keep(&folder, &model, owner, &tokens).unwrap();
        let listed = folder.list().unwrap().pages;
        let page = path.join(
            listed
                .iter()
                .find(|page| page.bytes > 4096)
                .unwrap()
                .name
                .as_str(),
        );
        let mut bytes = fs::read(&page).unwrap();
        match is_seal {
            true => bytes[HEAD_BYTES + 40] ^= 1,
            false => bytes.truncate(bytes.len() - 16),
        }
        fs::write(&page, bytes).unwrap();
        let room = Room::new(4);
        let miss = folder.read(&prefix, prefix.tokens(), &room).unwrap_err();
        assert_eq!(
            matches!(miss, Miss::Seal { .. }),
            is_seal,
            "{damage}: {miss}"
        );
        assert!(!page.exists(), "{damage}: the next writer writes it again");
        assert!(room.copied.into_inner().unwrap().is_empty(), "{damage}");
    }
}
