//! Mechanisms of answers.

use heg_sched::{Class, Lane, Mechanism, RequestId};

use super::{CHUNK, Played, World, end, policy};

/// Five background answers, the longest contexts first, and a person's that comes while they decode.
fn answers_and_a_person(world: &World, removed: &[Mechanism]) -> Played {
    let policy = policy("agent-xpu", |policy| {
        removed.iter().for_each(|it| it.remove(policy));
    });
    world.play(policy, |stage| {
        let lengths = [8, 6, 4, 2, 1];
        let background = lengths.map(|chunks| stage.ask(Class::Proactive, chunks * CHUNK, 200));
        stage.wait_for_first_tokens(lengths.len());
        let person = stage.ask(Class::Reactive, 10, 60);
        end(person);
        background.into_iter().for_each(end);
    })
}

/// The members of iterations with the person's answer.
fn beside_the_person(played: &Played) -> Vec<Vec<RequestId>> {
    let person = played.requests(Class::Reactive)[0];
    let all = played.batches().into_iter();
    let with = all.filter(|(_, members)| members.contains(&person.id));
    with.map(|(_, members)| members.to_vec()).collect()
}

/// A person's answer joins the batch at the next iteration, and background answers leave it: two of them stay, those with
/// the shortest contexts (Algorithm 2). Without the cap all stay, and without the eviction those that came first.
#[test]
fn background_answers_leave_the_batch_to_a_person_the_longest_first() {
    let world = World::annotated();
    let played = answers_and_a_person(&world, &[]);
    let person = played.requests(Class::Reactive)[0];
    let background: Vec<RequestId> = played
        .requests(Class::Proactive)
        .iter()
        .map(|it| it.id)
        .collect();
    let acted =
        [Mechanism::ReactiveFirstBatch, Mechanism::LongestLeftOut].map(|it| played.acted(it));
    assert!(acted.iter().all(|steps| *steps > 0), "{acted:?}");
    let beside = beside_the_person(&played);
    assert!(beside.len() >= 50, "{}", beside.len());
    let shortest = [person.id, background[3], background[4]];
    for members in &beside {
        assert!(
            members.iter().all(|id| shortest.contains(id)),
            "{members:?}"
        );
    }
    assert!(beside.iter().any(|members| members.len() == 3));
    // It waits for no more than the iteration that runs when it has its first token.
    let first = person.first_token.unwrap();
    let since: Vec<_> = played
        .batches()
        .into_iter()
        .filter(|(at, _)| *at > first)
        .collect();
    let joined = since
        .iter()
        .position(|(_, members)| members.contains(&person.id));
    assert!(joined.is_some_and(|place| place <= 1), "{joined:?}");

    let played = answers_and_a_person(&world, &[Mechanism::ReactiveFirstBatch]);
    assert_eq!(played.acted(Mechanism::ReactiveFirstBatch), 0);
    assert!(
        beside_the_person(&played)
            .iter()
            .any(|members| members.len() == 6)
    );

    let played = answers_and_a_person(&world, &[Mechanism::LongestLeftOut]);
    assert_eq!(played.acted(Mechanism::LongestLeftOut), 0);
    let longest = played.requests(Class::Proactive)[0].id;
    assert!(
        beside_the_person(&played)
            .iter()
            .any(|members| members.contains(&longest))
    );
}

/// After each launch the iGPU rests for nine times as long as it should have taken; the bound is on predicted times, which
/// a busy machine exceeds.
#[test]
fn the_igpu_rests_between_launches() {
    let world = World::annotated();
    let run = |percent: Option<u32>| {
        let policy = policy("agent-xpu-quiet", |policy| {
            policy.limits.power_watts_max = None;
            policy.limits.igpu_percent_max = percent;
        });
        let played = world.play(policy, |stage| {
            // The lanes' speeds are known afterwards.
            end(stage.ask(Class::Reactive, 40, 40));
            end(stage.ask(Class::Reactive, 41, 80));
        });
        (
            played.acted(Mechanism::IgpuShare),
            played.busy_percent(Lane::Igpu),
        )
    };
    let (rests, share) = run(Some(10));
    let (never, whole) = run(None);
    assert!(rests > 0 && never == 0, "{rests}, {never}");
    assert!(4 * share < 3 * whole, "{share}% and {whole}%");
}
