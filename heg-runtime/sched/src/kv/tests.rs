//! Room for KV caches, step by step.

use super::*;
use crate::{Class, PromptLogits};

fn call(id: u64, flow: Option<u64>, prompt: u32, shared: u32) -> Submission {
    Submission {
        id: RequestId(id),
        client: ClientId(0),
        flow: flow.map(FlowId),
        class: Class::Proactive,
        prompt_tokens: prompt,
        shared_tokens: shared,
        kept_tokens: 0,
        output_tokens_max: 1,
        deadline: None,
        prompt_logits: PromptLogits::LastRow,
    }
}

/// Makes a budget with a flow for each (id, time), of 100 tokens each.
fn with_flows(tokens: u64, flash: u64, flows: &[(u64, u64)]) -> KvBudget {
    let mut kv = KvBudget::new(tokens, flash);
    let mut actions = Vec::new();
    for (id, at) in flows {
        kv.reserve(&call(*id, Some(*id), 100, 0), 100, &mut actions);
        kv.keep(RequestId(*id), FlowId(*id), 100, Micros(*at), &mut actions);
    }
    kv
}

fn offload(flow: u64, transfer: u64) -> Action {
    Action::Offload {
        flow: FlowId(flow),
        transfer: Transfer(transfer),
    }
}

#[test]
fn a_flow_goes_on_where_it_was() {
    let mut kv = KvBudget::new(1000, 0);
    let mut actions = Vec::new();
    let first = kv.reserve(&call(1, Some(9), 100, 0), 150, &mut actions);
    assert_eq!(first, Room::Reserved(0));
    kv.keep(RequestId(1), FlowId(9), 120, Micros(5), &mut actions);
    assert_eq!(kv.used, 120);
    let next = kv.reserve(&call(2, Some(9), 200, 110), 250, &mut actions);
    assert_eq!(next, Room::Reserved(110));
    assert_eq!(kv.used, 250);
    kv.release(RequestId(2), &mut actions);
    assert_eq!(kv.used, 0);
}

#[test]
fn kept_state_is_reused_whatever_the_flow_has_and_never_the_last_token() {
    let mut kv = with_flows(1000, 1000, &[(1, 20)]);
    let mut actions = Vec::new();
    let kept = |id, flow, shared, kept_tokens| Submission {
        kept_tokens,
        ..call(id, flow, 200, shared)
    };
    // More than its flow has, whose cache is given up.
    let room = kv.reserve(&kept(2, Some(1), 60, 128), 250, &mut actions);
    assert_eq!((room, kv.used), (Room::Reserved(128), 250));
    let room = kv.reserve(&kept(3, None, 0, 256), 250, &mut actions);
    assert_eq!((room, kv.used), (Room::Reserved(199), 500));
    kv.release(RequestId(2), &mut actions);
    kv.release(RequestId(3), &mut actions);
    assert_eq!(kv.used, 0);
}

#[test]
fn the_longest_idle_flow_makes_room() {
    let mut kv = with_flows(300, 0, &[(1, 20), (2, 10)]);
    let mut actions = Vec::new();
    let room = kv.reserve(&call(3, None, 200, 0), 200, &mut actions);
    assert_eq!(room, Room::Reserved(0));
    assert_eq!(actions[0], Action::ReleaseFlow(FlowId(2)));
    let room = kv.reserve(&call(4, None, 150, 0), 150, &mut actions);
    assert_eq!(room, Room::Full);
    assert!(
        kv.flows.contains_key(&FlowId(1)),
        "nothing is given up in vain"
    );
}

#[test]
fn idle_caches_of_the_client_that_has_most_go_first() {
    let mut kv = with_flows(400, 0, &[(1, 10)]);
    let mut actions = Vec::new();
    for flow in [2, 3] {
        let client = ClientId(7);
        let call = Submission {
            client,
            ..call(flow, Some(flow), 100, 0)
        };
        kv.reserve(&call, 100, &mut actions);
        kv.keep(
            RequestId(flow),
            FlowId(flow),
            100,
            Micros(10 * flow),
            &mut actions,
        );
    }
    actions.clear();
    assert_eq!(
        kv.reserve(&call(4, None, 200, 0), 200, &mut actions),
        Room::Reserved(0)
    );
    assert_eq!(
        actions[0],
        Action::ReleaseFlow(FlowId(2)),
        "not the longest idle"
    );
}

#[test]
fn memory_is_free_when_what_it_had_is_on_flash_and_not_before() {
    let mut kv = with_flows(300, 250, &[(1, 10), (2, 20)]);
    let mut actions = Vec::new();
    let third = call(3, None, 300, 0);
    assert_eq!(kv.reserve(&third, 300, &mut actions), Room::Soon);
    assert_eq!(actions, [offload(1, 0), offload(2, 1)]);
    assert_eq!(kv.used, 200);
    assert_eq!(kv.reserve(&third, 300, &mut actions), Room::Soon);
    assert_eq!(actions.len(), 2, "once is enough");
    kv.offloaded(Transfer(0));
    assert_eq!(kv.reserve(&third, 300, &mut actions), Room::Soon);
    kv.offloaded(Transfer(1));
    assert_eq!(kv.used, 0);
    assert_eq!(kv.reserve(&third, 300, &mut actions), Room::Reserved(0));
    kv.release(RequestId(3), &mut actions);
    let again = |id, flow| call(id, Some(flow), 200, 90);
    for (id, flow) in [(4, 1), (5, 2)] {
        let room = kv.reserve(&again(id, flow), 150, &mut actions);
        assert_eq!(room, Room::Reserved(90));
    }
    assert_eq!(kv.used, 300);
}

#[test]
fn a_cache_that_flash_does_not_take_stays_until_somebody_needs_its_room() {
    let mut kv = with_flows(300, 250, &[(1, 10), (2, 20)]);
    let mut actions = Vec::new();
    let third = call(3, None, 200, 0);
    assert_eq!(kv.reserve(&third, 200, &mut actions), Room::Soon);
    kv.offload_failed(Transfer(0));
    assert_eq!(kv.used, 200);
    actions.clear();
    // The longest idle flow, which flash refused, is given up.
    assert_eq!(kv.reserve(&third, 200, &mut actions), Room::Reserved(0));
    assert_eq!(actions[0], Action::ReleaseFlow(FlowId(1)));
    assert_eq!(kv.used, 300);
}

#[test]
fn what_flash_has_no_room_for_is_given_up() {
    let mut kv = with_flows(300, 150, &[(1, 10), (2, 20)]);
    let mut actions = Vec::new();
    let room = kv.reserve(&call(3, None, 300, 0), 300, &mut actions);
    assert_eq!(room, Room::Soon);
    // Room on flash is reserved from the start: the second flow finds none.
    assert_eq!(actions, [offload(1, 0), Action::ReleaseFlow(FlowId(2))]);
    kv.offloaded(Transfer(0));
    kv.reserve(&call(3, None, 300, 0), 300, &mut actions);
    kv.release(RequestId(3), &mut actions);
    kv.reserve(&call(4, Some(4), 100, 0), 100, &mut actions);
    kv.keep(RequestId(4), FlowId(4), 100, Micros(30), &mut actions);
    actions.clear();
    // The oldest cache makes room for the new one.
    kv.reserve(&call(5, None, 300, 0), 300, &mut actions);
    assert_eq!(actions, [Action::ReleaseFlow(FlowId(1)), offload(4, 1)]);
}

#[test]
fn a_cache_is_taken_back_while_it_is_written() {
    let mut kv = with_flows(300, 300, &[(1, 10), (2, 20)]);
    let mut actions = Vec::new();
    kv.reserve(&call(3, None, 200, 0), 200, &mut actions);
    let taken = kv.reserve(&call(4, Some(1), 120, 80), 150, &mut actions);
    assert_eq!(taken, Room::Reserved(80));
    assert_eq!(kv.used, 250);
    kv.offloaded(Transfer(0));
    assert_eq!(kv.used, 250, "its memory was the request's already");
    // A cache that was given up stays in memory until the writer lets go of it.
    kv.release(RequestId(4), &mut actions);
    kv.reserve(&call(5, None, 300, 0), 300, &mut actions);
    kv.release_flow(FlowId(2), &mut actions);
    assert_eq!(kv.used, 100);
    kv.offload_failed(Transfer(1));
    assert_eq!(kv.used, 0);
    assert_eq!(kv.flash.leaving(), 0);
}

#[test]
fn a_silent_lane_holds_what_it_may_write_to() {
    let mut kv = KvBudget::new(100, 0);
    let mut actions = Vec::new();
    kv.reserve(&call(1, None, 100, 0), 100, &mut actions);
    let igpu = LaneSet::of(|lane| lane == Lane::Igpu);
    kv.release_after(igpu, RequestId(1), &mut actions);
    assert_eq!(actions.last(), Some(&Action::Release(RequestId(1))));
    let second = call(2, None, 50, 0);
    assert_eq!(kv.reserve(&second, 50, &mut actions), Room::Full);
    kv.answered(Lane::Npu);
    assert_eq!(kv.reserve(&second, 50, &mut actions), Room::Full);
    kv.answered(Lane::Igpu);
    assert_eq!(kv.reserve(&second, 50, &mut actions), Room::Reserved(0));
}

#[test]
fn the_last_token_is_never_reused() {
    let mut kv = with_flows(300, 0, &[(1, 0)]);
    let mut actions = Vec::new();
    let room = kv.reserve(&call(2, Some(1), 100, 100), 120, &mut actions);
    assert_eq!(room, Room::Reserved(99));
}
