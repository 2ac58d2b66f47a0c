//! A page of kept state, and the name of a file of one.

#![no_main]

use heg_state::{HEAD_BYTES, PageHead, PageName};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Some(name) = PageName::parse(text)
    {
        assert_eq!(name.as_str(), text);
        assert!(!text.contains(['/', '\\']), "it leads to another folder");
        assert_eq!((name.owner().len(), name.link().len()), (16, 64));
    }
    if let Ok((head, seal)) = PageHead::parse(bytes) {
        assert_eq!(head.to_bytes(&seal), bytes[..HEAD_BYTES]);
    }
});
