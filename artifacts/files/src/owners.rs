//! Checks whether other users can change a place in the file system.
//!
//! A file is only as safe as every folder and link on the way to it: whoever may write to one of them can put another
//! file in its place. So each step of the resolved path has to belong to one of the [`Owners`], and only they may be
//! able to write to it. A folder with the sticky bit (`/tmp`) may be on the way: others can add to it but not replace
//! our files.
//!
//! Write permission for a group counts as the owner's if the group is this user's own, without other members: many
//! systems give each user such a group, and a umask to match. On systems other than Unix only the kinds are checked.

use std::fs::Metadata;
use std::path::{Path, PathBuf};

use crate::error::FileError;
use crate::platform::{self, effective_user, is_sticky, owner};

/// The users whose files are trusted: root, the user of this process, and any that were added.
#[derive(Debug, Clone)]
pub struct Owners {
    uids: Vec<u32>,
}

/// Required kind of a path's step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// A folder on the way to the path.
    Way,
    /// A folder whose whole content is trusted.
    Folder,
    /// A file or folder that is trusted.
    Any,
}

impl Owners {
    /// Returns root and the user of this process.
    pub fn this_user() -> Self {
        let mut uids = vec![effective_user(), ROOT];
        uids.dedup();
        Self { uids }
    }

    /// Adds the owner of `path`, which must be trusted already, e.g. the running program.
    ///
    /// # Errors
    ///
    /// [`FileError::Io`] if `path` cannot be inspected.
    pub fn and_owner_of(mut self, path: &Path) -> Result<Self, FileError> {
        let data = std::fs::metadata(path).map_err(FileError::io("inspect", path))?;
        self.uids.extend(owner(&data));
        self.uids.sort_unstable();
        self.uids.dedup();
        Ok(self)
    }

    /// Checks that only these users can change or replace the file or folder at `path`. Returns its path without links.
    ///
    /// # Errors
    ///
    /// [`FileError::Owner`], [`FileError::Writable`], [`FileError::Links`]; [`FileError::Io`] if nothing is there.
    pub fn check(&self, path: &Path) -> Result<PathBuf, FileError> {
        self.walk(path, Step::Any)
    }

    /// Checks that `path` is a folder in which only these users can change anything. Returns its path without links.
    ///
    /// # Errors
    ///
    /// The errors of [`check`](Self::check), and [`FileError::Kind`].
    pub fn check_folder(&self, path: &Path) -> Result<PathBuf, FileError> {
        self.walk(path, Step::Folder)
    }

    /// Checks a folder as [`check_folder`](Self::check_folder) does, and each file and folder in it, but not the
    /// content of those folders.
    ///
    /// # Errors
    ///
    /// The errors of [`check_folder`](Self::check_folder).
    pub fn check_content(&self, path: &Path) -> Result<(), FileError> {
        let folder = self.check_folder(path)?;
        let entries = std::fs::read_dir(&folder).map_err(FileError::io("list", &folder))?;
        for entry in entries {
            let entry = entry.map_err(FileError::io("list", &folder))?.path();
            let data = std::fs::symlink_metadata(&entry);
            let data = data.map_err(FileError::io("inspect", &entry))?;
            match data.is_symlink() {
                // A link to nothing cannot lead to a foreign file.
                true if !entry.exists() => {}
                true => drop(self.check(&entry)?),
                false => self.check_step(&entry, &data, Step::Any)?,
            }
        }
        Ok(())
    }

    /// Checks that others cannot replace a file that these users put at `path`, which need not exist yet: the folder
    /// that holds it may be shared only as `/tmp` is.
    ///
    /// # Errors
    ///
    /// The errors of [`check_folder`](Self::check_folder).
    pub fn check_place(&self, path: &Path) -> Result<(), FileError> {
        let absolute = absolute(path)?;
        let folder = absolute.parent().unwrap_or(Path::new("/"));
        self.walk(folder, Step::Way).map(drop)
    }

    fn walk(&self, path: &Path, last: Step) -> Result<PathBuf, FileError> {
        let absolute = absolute(path)?;
        let mut real = PathBuf::new();
        let mut ahead = components(&absolute);
        let mut links = 0;
        while let Some(component) = ahead.pop() {
            let next = match component.as_os_str() == ".." {
                true => real.parent().unwrap_or(&real).to_owned(),
                false => real.join(&component),
            };
            let data = std::fs::symlink_metadata(&next).map_err(FileError::io("inspect", &next))?;
            if data.is_symlink() {
                links += 1;
                if links > LINKS_MAX {
                    let path = path.to_owned();
                    let most = LINKS_MAX;
                    return Err(FileError::Links { path, most });
                }
                self.check_owner(&next, &data)?;
                let target = std::fs::read_link(&next).map_err(FileError::io("read", &next))?;
                ahead.extend(components(&target));
                continue;
            }
            let step = if ahead.is_empty() { last } else { Step::Way };
            self.check_step(&next, &data, step)?;
            real = next;
        }
        Ok(real)
    }

    fn check_step(&self, path: &Path, data: &Metadata, step: Step) -> Result<(), FileError> {
        if step != Step::Any && !data.is_dir() {
            return Err(FileError::Kind {
                path: path.to_owned(),
                found: "no folder",
                expected: "a folder",
            });
        }
        self.check_owner(path, data)?;
        if step == Step::Way && is_sticky(data) {
            return Ok(());
        }
        check_writers(path, data)
    }

    pub(crate) fn check_file(&self, path: &Path, data: &Metadata) -> Result<(), FileError> {
        self.check_owner(path, data)?;
        check_writers(path, data)
    }

    fn check_owner(&self, path: &Path, data: &Metadata) -> Result<(), FileError> {
        match owner(data) {
            Some(found) if !self.uids.contains(&found) => Err(FileError::Owner {
                path: path.to_owned(),
                found,
                expected: self.describe(),
            }),
            _ => Ok(()),
        }
    }

    fn describe(&self) -> String {
        let name = |uid: &u32| match *uid {
            ROOT => "root".to_owned(),
            uid => format!("user {uid}"),
        };
        let names: Vec<String> = self.uids.iter().map(name).collect();
        names.join(" or ")
    }
}

fn absolute(path: &Path) -> Result<PathBuf, FileError> {
    std::path::absolute(path).map_err(FileError::io("resolve", path))
}

/// The components of a path, the first one last. An absolute path starts over: joining its root drops everything
/// before.
fn components(path: &Path) -> Vec<PathBuf> {
    let parts = path.components();
    let parts = parts.filter(|part| *part != std::path::Component::CurDir);
    let mut parts: Vec<PathBuf> = parts.map(|part| PathBuf::from(part.as_os_str())).collect();
    parts.reverse();
    parts
}

/// Refuses a file that others may write to.
fn check_writers(path: &Path, data: &Metadata) -> Result<(), FileError> {
    match platform::writable_mode(data) {
        Some(mode) => {
            let path = path.to_owned();
            Err(FileError::Writable { path, mode })
        }
        None => Ok(()),
    }
}

const ROOT: u32 = 0;

/// Most links that are followed, as on Linux.
const LINKS_MAX: usize = 40;

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    /// Returns a folder within a temporary one, and the temporary one.
    fn folder() -> (tempfile::TempDir, PathBuf) {
        let above = tempfile::tempdir().unwrap();
        let folder = above.path().join("own");
        fs::create_dir(&folder).unwrap();
        set_mode(&folder, 0o755);
        (above, folder)
    }

    fn refusal(path: &Path) -> String {
        Owners::this_user().check(path).unwrap_err().to_string()
    }

    #[test]
    fn a_folder_of_ours_passes_and_is_named_without_links() {
        let (above, folder) = folder();
        let link = above.path().join("link");
        symlink("./own/../own", &link).unwrap();
        let real = folder.canonicalize().unwrap();
        for path in [&folder, &link] {
            assert_eq!(Owners::this_user().check_folder(path).unwrap(), real);
        }
        assert_eq!(
            Owners::this_user().check(Path::new("/")).unwrap(),
            Path::new("/")
        );
    }

    #[test]
    fn what_others_may_write_to_is_refused_wherever_it_is_on_the_way() {
        let (above, folder) = folder();
        let file = folder.join("file");
        fs::write(&file, b"x").unwrap();
        for (writable, mode) in [(above.path(), 0o777), (&folder, 0o757), (&file, 0o666)] {
            set_mode(writable, mode);
            let text = format!(
                "other users can write to `{}` (mode {mode:04o}), expected its owner only: run `chmod go-w` on it, or \
                 use another place",
                writable.display()
            );
            assert_eq!(refusal(&file), text);
            set_mode(writable, 0o755);
        }
        assert!(Owners::this_user().check(&file).is_ok());
    }

    #[test]
    fn a_sticky_folder_may_be_passed_and_not_believed() {
        let (above, folder) = folder();
        set_mode(above.path(), 0o1777);
        let owners = Owners::this_user();
        assert!(owners.check_folder(&folder).is_ok());
        assert!(owners.check_place(&above.path().join("socket")).is_ok());
        assert!(owners.check_folder(above.path()).is_err());
        set_mode(above.path(), 0o777);
        assert!(owners.check_place(&above.path().join("socket")).is_err());
    }

    /// Only root can give files away, so for other users the list of owners leaves this user out instead.
    #[test]
    fn what_belongs_to_another_user_is_refused_links_too() {
        let (above, folder) = folder();
        let link = above.path().join("link");
        symlink(&folder, &link).unwrap();
        if effective_user() == ROOT {
            chown(&folder, Some(12345), None).unwrap();
            let text = format!(
                "`{}` belongs to user 12345, expected root: use another place, or `chown` it",
                folder.display()
            );
            assert_eq!(refusal(&folder), text);
            let owners = Owners::this_user().and_owner_of(&folder).unwrap();
            assert!(owners.check_folder(&folder).is_ok());
            chown(&folder, Some(0), None).unwrap();
            std::os::unix::fs::lchown(&link, Some(12345), None).unwrap();
            assert!(refusal(&link).starts_with(&format!("`{}` belongs to", link.display())));
        } else {
            let nobody = Owners { uids: vec![ROOT] };
            assert!(matches!(
                nobody.check(&folder),
                Err(FileError::Owner { .. })
            ));
        }
    }

    #[test]
    fn a_folder_is_as_good_as_what_is_in_it() {
        let (above, folder) = folder();
        let outside = above.path().join("outside");
        for file in [folder.join("inside"), outside.clone()] {
            fs::write(&file, b"x").unwrap();
            set_mode(&file, 0o644);
        }
        symlink(&outside, folder.join("link")).unwrap();
        symlink(above.path().join("nothing"), folder.join("dangling")).unwrap();
        let owners = Owners::this_user();
        owners.check_content(&folder).unwrap();
        for file in [folder.join("inside"), outside] {
            set_mode(&file, 0o646);
            let error = owners.check_content(&folder).unwrap_err();
            assert!(matches!(error, FileError::Writable { .. }), "{error}");
            set_mode(&file, 0o644);
        }
    }

    #[test]
    fn circles_and_nothing_end() {
        let (above, folder) = folder();
        let (left, right) = (above.path().join("left"), above.path().join("right"));
        symlink(&left, &right).unwrap();
        symlink(&right, &left).unwrap();
        assert!(refusal(&left).ends_with("leads through more than 40 symbolic links"));
        let missing = Owners::this_user().check(&folder.join("missing"));
        assert!(missing.unwrap_err().is_not_found());
    }
}
