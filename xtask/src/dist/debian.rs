//! The Debian package: an `ar` archive of two tar files.

use super::archive::{Content, Entry, gzip, tar_gz};
use super::glibc::Glibc;
use super::package::Shipment;
use anyhow::Result;

/// Makes the package of the commands with their pages.
pub(super) fn write(
    release: &Shipment,
    programs: Vec<Entry>,
    pages: &[Entry],
    licences: &str,
    oldest: Glibc,
) -> Result<Vec<u8>> {
    let mut data: Vec<Entry> = programs
        .into_iter()
        .map(|it| it.below("./usr/bin"))
        .collect();
    for page in pages {
        data.extend(installed(page)?);
    }
    let own = include_str!("../../../LICENSE");
    let copyright = format!("HEG is under the Apache License 2.0.\n\n{own}\n{licences}");
    data.push(Entry::plain("./usr/share/doc/heg/copyright", copyright));
    let bytes: usize = data
        .iter()
        .map(|entry| match &entry.content {
            Content::Plain(bytes) | Content::Program(bytes) => bytes.len(),
            Content::Link(_) => 0,
        })
        .sum();
    let control = format!(
        "Package: heg\nVersion: {}\nArchitecture: amd64\nMaintainer: The HEG authors <heg@localhost>\n\
         Installed-Size: {}\nDepends: libc6 (>= {oldest}), libgcc-s1\nSection: science\nPriority: optional\n\
         Description: language models compiled ahead of time, for CPUs, GPUs and NPUs\n \
         heg runs and serves bundles, hegc compiles models to them.\n",
        release.version,
        bytes.div_ceil(1024),
    );
    let control = tar_gz(vec![Entry::plain("./control", control)], release.epoch)?;
    let data = tar_gz(data, release.epoch)?;
    let mut package = ar::Builder::new(Vec::new());
    for (name, member) in [
        ("debian-binary", &b"2.0\n"[..]),
        ("control.tar.gz", &control),
        ("data.tar.gz", &data),
    ] {
        let mut header = ar::Header::new(name.as_bytes().to_vec(), member.len() as u64);
        header.set_mode(0o100_644);
        header.set_mtime(release.epoch);
        package.append(&header, member)?;
    }
    Ok(package.into_inner()?)
}

/// A page where Debian has it.
fn installed(page: &Entry) -> Result<Option<Entry>> {
    let (Some((folder, name)), Content::Plain(bytes)) = (page.path.split_once('/'), &page.content)
    else {
        return Ok(None);
    };
    let place = match name.rsplit_once('.') {
        _ if folder == "man" => {
            let path = format!("./usr/share/man/man1/{name}.gz");
            return Ok(Some(Entry::plain(path, gzip(bytes)?)));
        }
        Some((command, "bash")) => format!("bash-completion/completions/{command}"),
        Some((_, "fish")) => format!("fish/vendor_completions.d/{name}"),
        _ => format!("zsh/vendor-completions/{name}"),
    };
    Ok(Some(Entry::plain(
        format!("./usr/share/{place}"),
        bytes.clone(),
    )))
}
