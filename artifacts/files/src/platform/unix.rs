//! Unix: users, groups and modes.

use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::sync::OnceLock;

use rustix::fs::OFlags;

use super::Links;

/// The owner's number.
pub(crate) fn owner(data: &Metadata) -> Option<u32> {
    Some(data.uid())
}

/// Permissions under which users other than the owner can write; `None` if they cannot.
pub(crate) fn writable_mode(data: &Metadata) -> Option<u32> {
    let mode = data.mode() & 0o7777;
    let by_all = mode & 0o002 != 0;
    let by_group = mode & 0o020 != 0 && own_group() != Some(data.gid());
    (by_all || by_group).then_some(mode)
}

/// Whether only owners can replace files in a shared folder.
pub(crate) fn is_sticky(data: &Metadata) -> bool {
    data.mode() & 0o1000 != 0
}

/// The number of this process's user.
pub(crate) fn effective_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether an open file still has a name.
pub(crate) fn is_linked(file: &File) -> bool {
    file.metadata().is_ok_and(|data| data.nlink() > 0)
}

/// Makes opening not wait for the other end of a pipe.
pub(crate) fn open_at_once(options: &mut OpenOptions, links: Links) {
    let mut flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    if links == Links::Refused {
        flags |= OFlags::NOFOLLOW;
    }
    options.custom_flags(flags.bits().cast_signed());
}

/// Makes new folders for this user alone.
pub(crate) fn for_this_user(builder: &mut DirBuilder) {
    builder.mode(0o700);
}

/// Makes a new file for this user alone.
pub(crate) fn for_this_user_alone(options: &mut OpenOptions) {
    options.mode(0o600);
}

/// Removes the permissions of all other users on a file.
pub(crate) fn protect(file: &File) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(0o600))
}

/// The group whose only member is this user, if the system's lists name one.
fn own_group() -> Option<u32> {
    static GROUP: OnceLock<Option<u32>> = OnceLock::new();
    *GROUP.get_or_init(|| {
        let users = std::fs::read_to_string("/etc/passwd").ok()?;
        let groups = std::fs::read_to_string("/etc/group").ok()?;
        group_of_one(effective_user(), &users, &groups)
    })
}

/// The group that is named after the user, is the user's login group and has no other member. `users` and `groups` are
/// the texts of `/etc/passwd` and `/etc/group`.
fn group_of_one(uid: u32, users: &str, groups: &str) -> Option<u32> {
    let users = users.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let uid: u32 = fields.nth(1)?.parse().ok()?;
        let gid: u32 = fields.next()?.parse().ok()?;
        Some((name, uid, gid))
    });
    let users: Vec<_> = users.collect();
    let (name, _, gid) = *users.iter().find(|(_, other, _)| *other == uid)?;
    let is_shared = users
        .iter()
        .any(|(other, _, group)| *group == gid && *other != name);
    let mut named = groups.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let number: u32 = fields.nth(1)?.parse().ok()?;
        Some((name, number, fields.next().unwrap_or_default()))
    });
    let (group, _, members) = named.find(|(_, number, _)| *number == gid)?;
    let is_alone = members
        .split(',')
        .all(|member| member.is_empty() || member == name);
    (!is_shared && group == name && is_alone).then_some(gid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_counts_as_ours_where_nobody_else_is_in_it() {
        let users = "root:x:0:0::/:\nann:x:1000:1000::/:\nben:x:1001:100::/:\ncid:x:1002:1002::/:";
        let groups = "root:x:0:\nann:x:1000:ann\nusers:x:100:\ncid:x:1002:ann,cid";
        assert_eq!(group_of_one(0, users, groups), Some(0));
        assert_eq!(group_of_one(1000, users, groups), Some(1000));
        assert_eq!(
            group_of_one(1001, users, groups),
            None,
            "not named after them"
        );
        assert_eq!(group_of_one(1002, users, groups), None, "another member");
        let shared = format!("{users}\ndan:x:1003:1000::/:");
        assert_eq!(
            group_of_one(1000, &shared, groups),
            None,
            "another's group at login"
        );
        assert_eq!(group_of_one(7, users, groups), None);
    }
}
