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

/// Forecasts of an engine while it is alone, and then of a person's prompt and a background prompt while persons' prompts
/// are under way in another one, which is slow.
struct Forecasts {
    alone: Duration,
    person: Duration,
    background: Duration,
}

fn forecasts(busy: &World, other: &World) -> Forecasts {
    let alone = forecast(other, Class::Proactive);
    busy.plan.slow_down(Lane::Cpu, Duration::from_millis(20));
    let persons = [5, 3, 7].map(|at| {
        let prompt = &busy.references[at].prompt;
        Answer::of(&busy.engine, request(Class::Reactive, prompt))
    });
    for person in &persons {
        person.predicted_ttft();
    }
    let asked = [Class::Reactive, Class::Proactive].map(|class| {
        let prompt = &other.references[5].prompt;
        Answer::of(&other.engine, request(class, prompt))
    });
    let [person, background] = asked.each_ref().map(Answer::predicted_ttft);
    busy.plan.slow_down(Lane::Cpu, Duration::ZERO);
    for answer in persons.into_iter().chain(asked) {
        answer.wait();
    }
    // It answers behind the step that ended the last request, and told so.
    busy.engine.status().unwrap();
    Forecasts {
        alone,
        person,
        background,
    }
}

#[test]
fn forecasts_count_the_prompts_of_other_engines() {
    let turns = DeviceTurns::shared();
    let [busy, other] = [(); 2].map(|()| World::sharing(&turns));
    // What kernels take is known by then.
    for world in [&busy, &other] {
        forecast(world, Class::Proactive);
    }
    // Kernels seem slow where other programs run, so that the forecasts of one round differ by more than their cause.
    let mut slower = [0.0; 5].map(|_| {
        let found = forecasts(&busy, &other);
        // Background work waits for all of them.
        assert!(found.background > found.person);
        found.person.as_secs_f64() / found.alone.as_secs_f64()
    });
    slower.sort_by(f64::total_cmp);
    // A person takes turns with those before.
    assert!(slower[2] > 1.3, "{slower:?}");
    // When they have ended, nothing is left of them.
    let last = forecasts(&busy, &other);
    assert!(last.alone < last.background);
}
