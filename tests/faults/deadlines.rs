//! Deadlines of requests that the scheduler does not have yet.

use std::time::{Duration, Instant};

use heg_runtime::engine::Request;
use heg_sched::{Class, Finish};
use heg_tests::openvino_or_skip;

use crate::world::{Answer, World, policies, request};

#[test]
fn a_deadline_passes_behind_a_busy_flow() {
    if !openvino_or_skip("a_deadline_passes_behind_a_busy_flow") {
        return;
    }
    for (policy, soc) in policies() {
        let world = World::new(policy, soc);
        let busy_flow = world.engine.new_flow();
        let flow = Some(busy_flow);
        let prompt = &world.references[1].prompt;
        let busy = Answer::of(
            &world.engine,
            Request {
                flow,
                tokens_max: 900,
                ..request(Class::Proactive, prompt)
            },
        );
        let begin = Instant::now();
        let late = Answer::of(
            &world.engine,
            Request {
                flow,
                deadline: Some(Duration::from_millis(30)),
                ..request(Class::Reactive, prompt)
            },
        );
        let given_up = Answer::of(
            &world.engine,
            Request {
                flow,
                deadline: Some(Duration::MAX),
                ..request(Class::Reactive, prompt)
            },
        );
        let (tokens, ending) = late.wait();
        let took = begin.elapsed();
        assert_eq!((tokens.len(), ending.finish), (0, Finish::Deadline));
        assert!(took >= Duration::from_millis(30));
        println!("{policy}: 30 ms behind a busy flow ended after {took:?}");
        // The call before it goes on.
        assert!(busy.try_wait().is_none(), "{policy}");
        world.engine.cancel(given_up.id);
        assert_eq!(given_up.wait().1.finish, Finish::Cancelled);
        world.engine.cancel(busy.id);
        assert_eq!(busy.wait().1.finish, Finish::Cancelled);
        world.engine.end_flow(busy_flow);
        world.is_empty_again();
    }
}
