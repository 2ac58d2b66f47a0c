//! A page of kept state or of a baked state, and the name of a file of one.

use heg_state::{HEAD_BYTES, PAGE_TOKENS, PageHead, PageName, public_page, public_payload};

pub(crate) fn run(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Some(name) = PageName::parse(text)
    {
        assert_eq!(name.as_str(), text);
        assert!(!text.contains(['/', '\\']), "it leads to another folder");
        assert_eq!((name.owner().len(), name.link().len()), (16, 64));
    }
    if let Ok((head, seal)) = PageHead::parse(bytes) {
        assert_eq!(head.to_bytes(&seal), bytes[..HEAD_BYTES]);
        assert!((1..=PAGE_TOKENS).contains(&head.tokens().len()));
        assert!(head.payload_bytes() <= head.model.payload_bytes);
        // As a page of a baked state it has exactly the content that its head says.
        if let Ok(payload) = public_payload(&head, bytes) {
            assert_eq!(payload.len() as u64, head.payload_bytes());
            assert_eq!(public_page(&head, payload), bytes);
        }
    }
}
