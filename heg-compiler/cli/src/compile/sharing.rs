//! The machines that a compile shares its store with.

use crate::fail::Fail;
use anyhow::{Context, Result};
use heg_compiler::{StoreKey, StoreSharing};
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Arguments of `hegc compile` about other machines.
#[derive(clap::Args)]
pub(super) struct SharingArgs {
    /// Secret of the machines that share the store below `HEG_BUNDLES`: what others wrote there is not taken
    #[arg(long, value_name = "FILE")]
    store_key: Option<PathBuf>,
    /// Bucket in which machines with the secret share their stores, s3://bucket/folder or file:///folder: what one of them
    /// made is fetched, and what is made here is sent; AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION
    /// and AWS_ENDPOINT_URL are read
    #[arg(long, value_name = "URL", requires = "store_key")]
    shared_store: Option<String>,
}

impl SharingArgs {
    /// Reads the key, and opens the bucket.
    pub(super) fn read(&self) -> Result<StoreSharing> {
        let Some(file) = &self.store_key else {
            return Ok(StoreSharing::Nobody);
        };
        let key = read_key(file)?;
        let Some(url) = &self.shared_store else {
            return Ok(StoreSharing::Folder(key));
        };
        let bucket = heg_bucket::open(url, |name| env::var(name).ok())
            .map_err(anyhow::Error::new)
            .with_context(|| Fail::input("cannot use the bucket of `--shared-store`"))?;
        Ok(StoreSharing::Place(key, bucket))
    }
}

/// Reads the secret of a shared store.
fn read_key(file: &Path) -> Result<StoreKey> {
    let shown = file.display();
    let bad = || Fail::input(format!("cannot use the key `{shown}`"));
    let secret = fs::read(file).with_context(bad)?;
    if secret.len() < KEY_BYTES_MIN {
        let found = secret.len();
        Err(Fail::input(format!(
            "the key `{shown}` has `{found}` bytes, expected at least `{KEY_BYTES_MIN}`"
        ))
        .hint("`head -c 32 /dev/urandom > FILE` makes one, which all machines get"))?;
    }
    Ok(StoreKey::of(&secret))
}

/// Least length of a secret, in bytes: nobody can guess as many random ones.
const KEY_BYTES_MIN: usize = 16;
