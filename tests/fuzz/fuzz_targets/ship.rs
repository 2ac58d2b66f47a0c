//! Documents that strangers send with a bundle, and that a store reads back: the first byte says which one the rest is.

use heg_artifacts::View;
use heg_ship::{Digest, ImageManifest, Index, ModelName, Tagged, TrustState};

pub(crate) fn run(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else {
        return;
    };
    match kind % 5 {
        0 => documents(rest),
        1 => view(rest),
        2 => name(&String::from_utf8_lossy(rest)),
        3 => digest(&String::from_utf8_lossy(rest)),
        _ => {
            if let Ok(state) = TrustState::parse(rest, "here") {
                let text = serde_json::to_vec(&state).unwrap();
                assert_eq!(TrustState::parse(&text, "here").unwrap(), state);
            }
        }
    }
}

/// An index or a manifest is refused, or written and read again as the same.
fn documents(bytes: &[u8]) {
    match Tagged::parse(bytes, "here") {
        Ok(Tagged::Index(index)) => {
            let text = serde_json::to_vec(&index).unwrap();
            assert_eq!(Index::parse(&text, "here").unwrap(), index);
        }
        Ok(Tagged::Manifest(manifest)) => {
            for layer in &manifest.layers {
                if let Some(bytes) = layer.embedded() {
                    assert_eq!(Digest::of(&bytes), layer.digest);
                }
            }
            let text = serde_json::to_vec(&manifest).unwrap();
            assert_eq!(ImageManifest::parse(&text, "here").unwrap(), manifest);
        }
        Err(_) => {}
    }
}

/// A view names parts alone, and its length can be mapped.
fn view(bytes: &[u8]) {
    if let Ok(view) = View::parse(bytes) {
        assert_eq!(View::parse(view.to_text().as_bytes()).unwrap(), view);
        assert!(i64::try_from(view.file_bytes()).is_ok());
        for part in view.parts() {
            let path = part.id.path_in("parts".as_ref());
            assert_eq!(path.components().count(), 3);
            assert!(path.starts_with("parts"));
        }
    }
}

/// A name leads neither out of an address nor out of a folder.
fn name(text: &str) {
    if let Ok(name) = text.parse::<ModelName>() {
        assert_eq!(name.to_string().parse::<ModelName>().unwrap(), name);
        let all = name.to_string();
        assert!(!all.contains(['?', '#', '@', '%', '\\', ' ']) && !all.contains("//"));
        assert!(
            name.repository()
                .split('/')
                .all(|part| part != "." && part != "..")
        );
    }
}

fn digest(text: &str) {
    if let Ok(digest) = text.parse::<Digest>() {
        assert_eq!(digest.to_string(), text);
        assert!(digest.hex().bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
}
