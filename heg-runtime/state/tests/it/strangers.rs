//! A client neither finds nor recognises what another one keeps.

use std::collections::BTreeSet;
use std::time::Duration;

use heg_state::{KeptLimits, PAGE_TOKENS, Purge, StateFolder, StateOwner};

use crate::pages::{keep, keep_older, model, recall};

const LIMITS: KeptLimits = KeptLimits {
    budget_bytes: 30 * 4400,
    age_max: Duration::from_secs(3600),
};

fn names(folder: &StateFolder) -> BTreeSet<String> {
    let listing = folder.list().unwrap();
    let names = listing
        .pages
        .iter()
        .map(|page| page.name.as_str().to_owned());
    names.collect()
}

#[test]
fn equal_prompts_of_two_owners_have_no_page_and_no_name_in_common() {
    let above = tempfile::tempdir().unwrap();
    let open = |name: &str| StateFolder::open(&above.path().join(name), LIMITS).unwrap();
    let (here, there) = (open("here"), open("there"));
    let (ann, ben) = (
        StateOwner::new("client", b"ann"),
        StateOwner::new("client", b"ben"),
    );
    let tokens: Vec<u32> = (0..200).collect();
    keep(&here, &model(1), ann, &tokens).unwrap();
    assert_eq!(recall(&here, &model(1), ben, &tokens).unwrap(), 0);
    assert_eq!(
        recall(&here, &model(1), ann, &tokens).unwrap(),
        3 * PAGE_TOKENS
    );
    assert_eq!(
        recall(&here, &model(2), ann, &tokens).unwrap(),
        0,
        "another bundle"
    );
    let of_ann = names(&here);
    keep(&there, &model(1), ann, &tokens).unwrap();
    assert!(
        of_ann.is_disjoint(&names(&there)),
        "a name says something of the prompt"
    );
    keep(&here, &model(1), ben, &tokens).unwrap();
    assert_eq!(names(&here).len(), 6);
}

#[test]
fn whoever_writes_most_gives_up_most() {
    let above = tempfile::tempdir().unwrap();
    let folder = StateFolder::open(&above.path().join("state"), LIMITS).unwrap();
    let (ann, ben) = (
        StateOwner::new("client", b"ann"),
        StateOwner::new("client", b"ben"),
    );
    let kept: Vec<u32> = (0..256).collect();
    keep(&folder, &model(1), ann, &kept).unwrap();
    for number in 0..40 {
        let tokens: Vec<u32> = (0..256).map(|at| at + 1000 * (number + 1)).collect();
        keep(&folder, &model(1), ben, &tokens).unwrap();
    }
    assert_eq!(recall(&folder, &model(1), ann, &kept).unwrap(), 256);
    let listing = folder.list().unwrap();
    assert!(listing.bytes <= LIMITS.budget_bytes);
    // Of each prompt the leading pages stay longest.
    assert!(listing.prefixes().iter().all(|prefix| prefix.is_whole));
}

#[test]
fn what_a_person_asked_for_outlives_the_background_of_the_same_owner() {
    let above = tempfile::tempdir().unwrap();
    let folder = StateFolder::open(&above.path().join("state"), LIMITS).unwrap();
    let (model, ann) = (model(1), StateOwner::new("client", b"ann"));
    let background = |tokens: &[u32]| {
        keep_older(&folder, &model, ann, tokens, Duration::from_secs(600)).unwrap();
    };
    let asked: Vec<u32> = (0..256).collect();
    keep(&folder, &model, ann, &asked).unwrap();
    // It read the same, but does not make it older.
    background(&asked);
    let digest = |number: u32| (0..256).map(move |at| at + 1000 * (number + 1));
    for number in 0..40 {
        background(&digest(number).collect::<Vec<u32>>());
    }
    assert_eq!(recall(&folder, &model, ann, &asked).unwrap(), 256);
    // What the person asks for later takes the room of what was read in the background.
    let later: Vec<u32> = digest(50).chain(0..1024).collect();
    keep(&folder, &model, ann, &later).unwrap();
    assert_eq!(recall(&folder, &model, ann, &later).unwrap(), later.len());
    assert_eq!(recall(&folder, &model, ann, &asked).unwrap(), 256);
    let last: Vec<u32> = digest(39).collect();
    assert_eq!(recall(&folder, &model, ann, &last).unwrap(), 256);
}

#[test]
fn what_is_purged_is_gone() {
    let above = tempfile::tempdir().unwrap();
    let folder = StateFolder::open(&above.path().join("state"), LIMITS).unwrap();
    let (owner, tokens): (_, Vec<u32>) = (StateOwner::this_user(), (0..128).collect());
    for number in [1, 2] {
        keep(&folder, &model(number), owner, &tokens).unwrap();
    }
    assert_eq!(folder.purge(Purge::Bundle([2; 32])).unwrap().0, 2);
    assert_eq!(recall(&folder, &model(1), owner, &tokens).unwrap(), 128);
    assert_eq!(folder.purge(Purge::All).unwrap().0, 2);
    assert_eq!(recall(&folder, &model(1), owner, &tokens).unwrap(), 0);
    assert!(names(&folder).is_empty());
}

#[cfg(unix)]
#[test]
fn a_folder_that_others_may_write_to_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let above = tempfile::tempdir().unwrap();
    let path = above.path().join("state");
    drop(StateFolder::open(&path, LIMITS).unwrap());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
    let refused = StateFolder::open(&path, LIMITS).err().unwrap().to_string();
    assert!(refused.starts_with("other users can write to"), "{refused}");
}
