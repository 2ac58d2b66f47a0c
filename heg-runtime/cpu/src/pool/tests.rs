//! Pieces are taken by the right threads, and the right threads wait.

use std::time::Instant;

use super::*;

const GO_ON: ControlFlow<()> = ControlFlow::Continue(());

fn crew(threads: usize) -> Crew<'static> {
    Crew {
        threads,
        kept_on: &[],
    }
}

/// Phases with all pieces on the first side.
fn of_first(pieces: &[usize]) -> impl Iterator<Item = Pieces> {
    let pieces = pieces.to_vec();
    pieces.into_iter().map(|first| of_both([first, 0]))
}

fn of_both(of_side: [usize; 2]) -> Pieces {
    Pieces {
        of_side,
        ..Pieces::default()
    }
}

#[test]
fn every_piece_is_done_once_and_phases_follow_each_other() {
    let mut pool = Pool::new(crew(3)).unwrap();
    for round in 0..300 {
        let pieces: Vec<usize> = (0..12).map(|phase| (phase + round) % 5).collect();
        let done: Vec<AtomicUsize> = pieces.iter().map(|_| AtomicUsize::new(0)).collect();
        let work = |Taken { phase, piece, .. }: Taken| {
            assert!(piece < pieces[phase]);
            let before = pieces[..phase].iter().zip(&done);
            assert!(
                before
                    .into_iter()
                    .all(|(pieces, done)| done.load(Ordering::Relaxed) == *pieces)
            );
            done[phase].fetch_add(1, Ordering::Relaxed);
            GO_ON
        };
        pool.run(of_first(&pieces), &work).unwrap();
        let done: Vec<usize> = done.into_iter().map(AtomicUsize::into_inner).collect();
        assert_eq!(done, pieces);
    }
}

#[test]
fn a_parked_pool_wakes_up() {
    let mut pool = Pool::new(crew(2)).unwrap();
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(30));
        let threads = Mutex::new(Vec::new());
        let work = |Taken { thread, .. }: Taken| {
            threads.lock().unwrap().push(thread);
            // Until the other thread has its piece, however busy the machine is.
            let patience = Instant::now() + Duration::from_secs(60);
            while threads.lock().unwrap().len() < 2 && Instant::now() < patience {
                thread::yield_now();
            }
            GO_ON
        };
        pool.run(of_first(&[2]), &work).unwrap();
        let mut threads = threads.into_inner().unwrap();
        threads.sort_unstable();
        assert_eq!(threads, [0, 1]);
    }
}

/// More threads than cores: some have not joined a call when the pool is dropped.
#[test]
fn a_pool_ends_whose_threads_are_late() {
    for _ in 0..300 {
        let mut pool = Pool::new(crew(8)).unwrap();
        for _ in 0..3 {
            pool.run(of_first(&[1, 1]), &|_| GO_ON).unwrap();
        }
    }
}

#[test]
fn a_piece_that_panics_is_an_error_from_then_on() {
    let mut pool = Pool::new(crew(2)).unwrap();
    let work = |Taken { piece, .. }: Taken| {
        assert_ne!(piece, 1, "on purpose");
        GO_ON
    };
    for _ in 0..2 {
        let lost = pool.run(of_first(&[4, 2]), &work);
        assert!(matches!(lost, Err(CpuError::Lost)));
    }
}

#[test]
fn a_piece_may_say_that_its_phase_is_the_last() {
    let mut pool = Pool::new(crew(3)).unwrap();
    for round in 0..300 {
        let last = round % 7;
        let ran = AtomicUsize::new(0);
        let work = |Taken { phase, piece, .. }: Taken| {
            assert!(phase <= last);
            ran.fetch_add(1, Ordering::Relaxed);
            if (phase, piece) == (last, 1) {
                ControlFlow::Break(())
            } else {
                GO_ON
            }
        };
        let phases = pool.run(of_first(&[4; 6]), &work).unwrap();
        assert_eq!(phases, (last + 1).min(6));
        assert_eq!(ran.into_inner(), 4 * phases);
    }
}

/// A thread that never comes, as if a neighbour had taken its core for good.
#[test]
fn nobody_waits_for_a_thread_that_takes_no_piece() {
    let mut pool = Pool::new(crew(1)).unwrap();
    let shared = Arc::clone(&pool.shared);
    let absent = move || {
        while !shared.ends.load(Ordering::Relaxed) {
            thread::park();
        }
    };
    pool.threads.push(thread::spawn(absent));
    let done = AtomicUsize::new(0);
    let work = |Taken { thread, .. }: Taken| {
        assert_eq!(thread, 0);
        done.fetch_add(1, Ordering::Relaxed);
        GO_ON
    };
    pool.run(of_first(&[8, 1, 8]), &work).unwrap();
    assert_eq!(done.into_inner(), 17);
}

#[test]
fn who_is_slow_takes_fewer_pieces() {
    let mut pool = Pool::new(crew(2)).unwrap();
    let taken = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let work = |Taken { thread, .. }: Taken| {
        let piece = taken[thread].fetch_add(1, Ordering::Relaxed);
        // The other thread holds its first piece until this one has done all others.
        while thread == 1 && piece == 0 && taken[0].load(Ordering::Relaxed) < 15 {
            thread::yield_now();
        }
        while thread == 0 && taken[1].load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        GO_ON
    };
    pool.run(of_first(&[16]), &work).unwrap();
    assert_eq!(taken.map(AtomicUsize::into_inner), [15, 1]);
}

fn pair(how: Synchronisation) -> Pool {
    Pool::pair([crew(1), crew(1)], Side::First, how).unwrap()
}

/// Equal phases, each with pieces of both sides.
fn shared(phases: usize, of_side: [usize; 2]) -> impl Iterator<Item = Pieces> {
    (0..phases).map(move |_| of_both(of_side))
}

#[test]
fn sides_do_their_own_pieces_and_wait_for_each_other() {
    for how in [Synchronisation::Fast, Synchronisation::Plain] {
        let mut pool = pair(how);
        for round in 0..200 {
            let done: Vec<AtomicUsize> = (0..12).map(|_| AtomicUsize::new(0)).collect();
            let of_side = [round % 3, 3 - round % 3];
            let work = |taken: Taken| {
                let before = done[..taken.phase].iter();
                assert!(before.clone().all(|done| done.load(Ordering::Relaxed) == 3));
                done[taken.phase].fetch_add(1, Ordering::Relaxed);
                GO_ON
            };
            assert_eq!(pool.run(shared(12, of_side), &work).unwrap(), 12);
        }
        assert!(pool.watch().unwrap().hand_overs().count() > 0);
    }
}

#[test]
fn the_caller_belongs_to_the_side_that_is_asked_for() {
    for callers in SIDES {
        let mut pool = Pool::pair([crew(1), crew(1)], callers, Synchronisation::Fast).unwrap();
        let caller = thread::current().id();
        let seen = Mutex::new(Vec::new());
        let work = |taken: Taken| {
            let is_caller = thread::current().id() == caller;
            assert_eq!(is_caller, taken.thread == 0);
            if is_caller {
                seen.lock().unwrap().push(taken.own);
            }
            GO_ON
        };
        pool.run(shared(200, [3, 3]), &work).unwrap();
        // A call of the caller's side alone.
        let alone = match callers {
            Side::First => [1, 0],
            Side::Second => [0, 1],
        };
        pool.run(shared(3, alone), &work).unwrap();
        let seen = seen.into_inner().unwrap();
        assert!(
            seen.len() >= 3 && seen.iter().all(|own| *own == callers),
            "{seen:?}"
        );
    }
}

/// Waits until something has been counted, however busy the machine is.
fn wait_for(count: &AtomicUsize) {
    let begin = Instant::now();
    while count.load(Ordering::Relaxed) == 0 && begin.elapsed() < Duration::from_secs(30) {
        thread::yield_now();
    }
}

/// A side whose thread never comes and sets no flag.
#[test]
fn a_late_sides_pieces_are_done_by_the_other() {
    for how in [Synchronisation::Fast, Synchronisation::Plain] {
        let mut pool = pair(how);
        pool.run(shared(3, [1, 1]), &|_| GO_ON).unwrap();
        // A call that the second side's thread never sees.
        let nothing: &'static Work<'static> = &|_| GO_ON;
        let mut call = Call::empty(nothing);
        call.fill(shared(40, [2, 3]), true, nothing);
        pool.shared.carry_out(&call, 0);
        assert!((0..40).all(|number| call.phase(number).unwrap().is_over()));
    }
}

#[test]
fn a_side_that_waits_long_stops_polling() {
    let mut pool = pair(Synchronisation::Fast);
    let barrier = Arc::clone(pool.shared.barrier.as_ref().unwrap());
    let [has_come, is_seen] = [false; 2].map(AtomicBool::new);
    let work = |taken: Taken| {
        if taken.thread == 1 {
            has_come.store(true, Ordering::Relaxed);
            // However busy the machine is: the second side holds its piece until the first side sleeps.
            let begin = Instant::now();
            while barrier.sleeping() == 0 && begin.elapsed() < Duration::from_secs(30) {
                thread::yield_now();
            }
            is_seen.store(barrier.sleeping() > 0, Ordering::Relaxed);
        }
        GO_ON
    };
    // If the thread comes too late, the first side takes its piece.
    while !has_come.load(Ordering::Relaxed) {
        pool.run(shared(1, [1, 1]), &work).unwrap();
    }
    assert!(is_seen.into_inner());
    assert_eq!(barrier.sleeping(), 0);
}

#[test]
fn whoever_sleeps_is_woken_by_the_end_of_the_other() {
    for how in [Synchronisation::Fast, Synchronisation::Plain] {
        let barrier = Arc::new(PairBarrier::new(how));
        let nothing: &'static Work<'static> = &|_| GO_ON;
        let mut call = Call::empty(nothing);
        call.fill(shared(1, [0, 1]), true, nothing);
        let call = Arc::new(call);
        let (says, hears) = std::sync::mpsc::channel();
        let [of_waiter, of_ringer] = [Arc::clone(&call), Arc::clone(&call)];
        let waits = Arc::clone(&barrier);
        thread::spawn(move || {
            let phase = of_waiter.phase(0).unwrap();
            let wait = waits.begin(phase, Side::First);
            let an_hour = Duration::from_secs(3600);
            says.send(waits.wait(phase, &wait, an_hour)).unwrap();
        });
        while barrier.sleeping() == 0 {
            thread::yield_now();
        }
        let second = of_ringer.phase(0).unwrap().queue(Side::Second).unwrap();
        barrier.piece_done(second, Side::Second);
        assert_eq!(hears.recv_timeout(Duration::from_secs(60)), Ok(true));
    }
}

#[test]
fn a_side_that_comes_back_is_waited_for_again() {
    let mut pool = pair(Synchronisation::Fast);
    let [taken_by_first, done_later] = [0, 0].map(AtomicUsize::new);
    let work = |taken: Taken| {
        if taken.side == Side::Second && taken.thread == 0 {
            taken_by_first.fetch_add(1, Ordering::Relaxed);
        }
        if taken.phase > 6 && taken.thread == 1 {
            done_later.fetch_add(1, Ordering::Relaxed);
        }
        // Once, the second side is late with its first of two pieces, until the first side has taken the other.
        if taken.thread == 1 && taken.phase == 6 && taken.piece == 0 {
            wait_for(&taken_by_first);
        }
        if taken.phase == 7 && taken.side == Side::First {
            wait_for(&done_later);
        }
        GO_ON
    };
    pool.run(shared(200, [1, 2]), &work).unwrap();
    assert!(taken_by_first.into_inner() >= 1);
    assert!(done_later.into_inner() >= 1);
}

#[test]
fn what_a_lost_side_had_begun_is_done_again() {
    for lost in [Side::First, Side::Second] {
        let mut pool = pair(Synchronisation::Fast);
        let fallen = AtomicUsize::new(0);
        for round in 0..3 {
            let done = AtomicUsize::new(0);
            let work = |taken: Taken| {
                let own = [Side::First, Side::Second][taken.thread];
                if own != lost {
                    wait_for(&fallen);
                } else if (round, taken.phase) != (0, 0) || taken.piece == 1 {
                    fallen.fetch_add(1, Ordering::Relaxed);
                    std::panic::resume_unwind(Box::new("on purpose"));
                }
                done.fetch_add(1, Ordering::Relaxed);
                GO_ON
            };
            assert_eq!(pool.run(shared(6, [3, 3]), &work).unwrap(), 6);
            assert_eq!(done.into_inner(), 36);
            let watch = pool.watch().unwrap();
            assert_eq!(watch.lost_side(), Some(lost));
            assert_eq!(watch.hand_overs().count(), 0);
        }
        assert_eq!(fallen.into_inner(), 1);
    }
}

#[test]
fn a_piece_that_panics_on_both_sides_is_an_error() {
    let mut pool = pair(Synchronisation::Fast);
    let work = |taken: Taken| {
        assert_ne!((taken.phase, taken.side), (1, Side::Second), "on purpose");
        GO_ON
    };
    for _ in 0..2 {
        let lost = pool.run(shared(4, [2, 2]), &work);
        assert!(matches!(lost, Err(CpuError::Lost)));
    }
}

#[test]
fn a_side_without_pieces_sleeps_and_is_woken_for_no_call() {
    let mut pool = pair(Synchronisation::Fast);
    let done = AtomicUsize::new(0);
    let count = |_: Taken| {
        done.fetch_add(1, Ordering::Relaxed);
        GO_ON
    };
    let begin = Instant::now();
    while pool.shared.parked.load(Ordering::SeqCst) == 0 {
        pool.run(shared(3, [2, 0]), &count).unwrap();
        assert!(begin.elapsed() < Duration::from_secs(30));
    }
    done.store(0, Ordering::Relaxed);
    for _ in 0..100 {
        pool.run(shared(3, [2, 0]), &count).unwrap();
        assert_eq!(pool.shared.parked.load(Ordering::SeqCst), 1);
    }
    // The caller waits for the other side, which has the rest of the call, or all of it.
    for of_side in [[0, 2], [1, 1]] {
        for _ in 0..100 {
            let phases = [of_both([1, 1]), of_both(of_side), of_both(of_side)];
            pool.run(phases.into_iter(), &count).unwrap();
            pool.run(shared(3, of_side), &count).unwrap();
        }
    }
    assert_eq!(done.into_inner(), 100 * (6 + 2 * 12));
}

#[test]
fn a_side_that_sleeps_does_what_a_lost_side_had_begun() {
    for (lost, of_side) in [(Side::First, [3, 0]), (Side::Second, [0, 3])] {
        for calls_before in [0, 20] {
            let mut pool = pair(Synchronisation::Fast);
            for _ in 0..calls_before {
                pool.run(shared(2, of_side), &|_| GO_ON).unwrap();
            }
            for _ in 0..2 {
                let done = AtomicUsize::new(0);
                let work = |taken: Taken| {
                    let own = [Side::First, Side::Second][taken.thread];
                    if own == lost {
                        std::panic::resume_unwind(Box::new("on purpose"));
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                    GO_ON
                };
                assert_eq!(pool.run(shared(4, of_side), &work).unwrap(), 4);
                assert_eq!(done.into_inner(), 12);
            }
        }
    }
}
