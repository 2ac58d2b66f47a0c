//! Requests that a fault delayed, explained from the trace of a real engine.

use std::fs::File;
use std::path::PathBuf;

use heg_runtime::engine::{Fault, Request, Victim};
use heg_sched::{Class, Finish, Lane, RequestId};
use heg_workload::{Explanation, RunTrace, SlowCause, TraceFile, explain};
use tempfile::TempDir;

use crate::world::{Answer, TWO_LANES, World, impatient, request};

/// An engine that writes a trace, and whose kernels count as hung after two seconds.
struct TracedWorld {
    world: World,
    folder: TempDir,
}

impl TracedWorld {
    fn new() -> Self {
        let name = "agent-xpu";
        let folder = tempfile::tempdir().unwrap();
        let file = TraceFile::create(&Self::path(&folder)).unwrap();
        let world = World::with(impatient(name), name, TWO_LANES, vec![Box::new(file)]);
        Self { world, folder }
    }

    fn path(folder: &TempDir) -> PathBuf {
        folder.path().join("trace.json")
    }

    /// Ends the engine, and explains one of its requests.
    fn explain(self, request: RequestId) -> Explanation {
        let Self { world, folder } = self;
        let World { engine, .. } = world;
        drop(engine);
        let trace = RunTrace::read(File::open(Self::path(&folder)).unwrap()).unwrap();
        let explanation = explain(&trace, request).unwrap();
        println!("{explanation}\n{}", explanation.picture(60));
        explanation
    }
}

fn main_cause(explanation: &Explanation) -> SlowCause {
    explanation.first_token.main().unwrap().cause
}

#[test]
fn a_kernel_that_hung_is_named_to_its_request_and_to_the_next() {
    let traced = TracedWorld::new();
    let world = &traced.world;
    world.expect(Fault::Hang, Victim::Lane(Lane::Npu), 0, 1);
    let long = &world.references[5].prompt;
    let first = Answer::of(&world.engine, request(Class::Proactive, long));
    let second = Answer::of(&world.engine, request(Class::Reactive, long));
    let (first_id, second_id) = (first.id, second.id);
    for answer in [first, second] {
        assert_eq!(answer.wait().1.finish, Finish::Complete);
    }
    assert_eq!(world.plan.happened(), 1);
    let explanation = traced.explain(second_id);
    let cause = SlowCause::Hung(first_id, Lane::Npu);
    assert_eq!(main_cause(&explanation), cause, "{explanation}");
}

#[test]
fn an_earlier_call_of_the_flow_is_named() {
    let traced = TracedWorld::new();
    let world = &traced.world;
    world.expect(Fault::Hang, Victim::Anybody, 0, 1);
    let flow = world.engine.new_flow();
    let call = |prompt: &[u32]| {
        let call = Request {
            flow: Some(flow),
            ..request(Class::Reactive, prompt)
        };
        Answer::of(&world.engine, call)
    };
    let calls = [
        call(&world.references[5].prompt),
        call(&world.references[0].prompt),
    ];
    let second = calls[1].id;
    for answer in calls {
        assert_eq!(answer.wait().1.finish, Finish::Complete);
    }
    let explanation = traced.explain(second);
    assert_eq!(main_cause(&explanation), SlowCause::Flow, "{explanation}");
}
