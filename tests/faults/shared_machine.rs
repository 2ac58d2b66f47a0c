//! Engines that share a machine; one of them is slow.

use std::time::Duration;

use heg_runtime::engine::DeviceTurns;
use heg_sched::{Class, Lane};

use crate::world::{Answer, World, request};

/// Returns the forecast of a prompt's first token, once its answer is there.
fn forecast(world: &World, class: Class) -> Duration {
    let answer = Answer::of(&world.engine, request(class, &world.references[5].prompt));
    let predicted = answer.predicted_ttft();
    answer.wait();
    predicted
}

#[test]
fn forecasts_count_the_prompts_of_other_engines() {
    let turns = DeviceTurns::shared();
    let [busy, other] = [(); 2].map(|()| World::sharing(&turns));
    // What kernels take is known by then.
    for world in [&busy, &other] {
        forecast(world, Class::Proactive);
    }
    let alone = forecast(&other, Class::Proactive);
    busy.plan.slow_down(Lane::Cpu, Duration::from_millis(20));
    let persons = [5, 3, 7].map(|at| {
        let prompt = &busy.references[at].prompt;
        Answer::of(&busy.engine, request(Class::Reactive, prompt))
    });
    for person in &persons {
        person.predicted_ttft();
    }
    let [own, background] = [Class::Reactive, Class::Proactive].map(|class| {
        let prompt = &other.references[5].prompt;
        let answer = Answer::of(&other.engine, request(class, prompt));
        (answer.predicted_ttft(), answer)
    });
    // A person takes turns with those before; background work waits for all of them.
    assert!(own.0 > alone.mul_f64(1.3), "{alone:?}, then {:?}", own.0);
    assert!(background.0 > own.0, "{:?}, {:?}", own.0, background.0);
    busy.plan.slow_down(Lane::Cpu, Duration::ZERO);
    for answer in persons.into_iter().chain([own.1, background.1]) {
        answer.wait();
    }
    // It answers behind the step that ended the last request, and told so.
    busy.engine.status().unwrap();
    let again = forecast(&other, Class::Proactive);
    assert!(again < background.0, "{again:?}, {:?}", background.0);
}
