//! Drafts in the form in which lanes verify them.

use super::*;

/// The tree 0 ─ 1 ─ 2 ─ 4, where 2 and 3 follow 1, and 5 follows 0. Each row's token is its number, except the last.
fn tree() -> DraftTokens {
    DraftTokens {
        tokens: vec![1, 2, 4, 3, 1],
        follows: Some(vec![0, 1, 2, 1, 0]),
    }
}

#[test]
fn a_tree_goes_on_with_any_token_that_follows() {
    let tree = tree();
    let rows = tree.rows(true);
    assert_eq!(rows.next(0, 1), Some(1), "the first of two");
    assert_eq!(rows.next(1, 2), Some(2));
    assert_eq!(rows.next(1, 3), Some(4));
    assert_eq!(rows.next(2, 4), Some(3));
    assert_eq!(rows.next(2, 3), None);
    assert_eq!(rows.next(3, 4), None);
}

#[test]
fn of_a_tree_its_first_chain_is_left_where_trees_are_not_verified() {
    let tree = tree();
    let rows = tree.rows(false);
    assert_eq!(rows.tokens, [1, 2, 4]);
    assert_eq!(rows.next(2, 4), Some(3));
    assert_eq!(rows.next(3, 3), None);
}
