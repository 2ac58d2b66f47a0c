//! All attacks, one file per target.

mod assets;
mod drafts;
mod event_loop;
mod floods;
mod forms;
mod protocol;
mod readers;
mod shutdown;
mod turns;

use super::attack::Attack;

/// Every attack, in the order in which they run.
pub(super) fn all() -> Vec<Attack> {
    let groups = [
        forms::attacks(),
        assets::attacks(),
        event_loop::attacks(),
        drafts::attacks(),
        readers::attacks(),
        turns::attacks(),
        floods::attacks(),
        protocol::attacks(),
        shutdown::attacks(),
    ];
    groups.into_iter().flatten().collect()
}
