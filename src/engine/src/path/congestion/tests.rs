use super::model::{Network, Run};
use super::*;
use crate::tuning::RateParameters;

const MS: Duration = Duration::from_millis(1);
const US: Duration = Duration::from_micros(1);
/// A quarter of the queue.
const MARKS_ABOVE: Option<u64> = Some(50_000);

/// After some time: the part of the link that is used, and how fair the shares are.
fn settled(network: Network) -> (f64, f64) {
    let mut run = Run::new(network);
    run.pass(20 * MS);
    run.measure(100 * MS)
}

#[expect(clippy::disallowed_methods, reason = "time must begin somewhere")]
fn start() -> Instant {
    Instant::now()
}

fn controlled() -> Congestion {
    Congestion::new(CongestionControl::default())
}

fn delivered(bytes: u64, round_trip: Duration) -> Delivered {
    Delivered {
        bytes,
        packets: 1,
        is_marked: false,
        round_trip: Some(round_trip),
        is_within_process: false,
        delays_others: false,
    }
}

fn lost(bytes: u64) -> Lost {
    Lost { bytes, is_rewound: false }
}

/// Delivers a window in each of so many round trips.
fn rounds(congestion: &mut Congestion, now: &mut Instant, count: usize, round_trip: Duration) {
    for _ in 0..count {
        let window = congestion.window();
        let mut left = window;
        *now += round_trip;
        while left > 0 {
            let bytes = left.min(1088);
            congestion.on_delivered(*now, window, delivered(bytes, round_trip));
            left -= bytes;
        }
    }
}

#[test]
fn without_control_the_window_stays() {
    let mut congestion = Congestion::new(CongestionControl::Off);
    let now = start();
    let marked = Delivered { is_marked: true, ..delivered(4096, 20 * US) };
    assert_eq!(congestion.on_delivered(now, 1 << 20, marked), None);
    assert_eq!(congestion.on_lost(now, 1 << 20, lost(1 << 19)), None);
    assert_eq!(congestion.on_cnp(now), None);
    assert_eq!((congestion.window(), congestion.rate()), (FIXED_WINDOW, None));
    assert_eq!(congestion.pace(now, None, 4096, 4096), None);
}

#[test]
fn a_window_grows_only_while_it_is_used() {
    let mut congestion = controlled();
    let mut now = start();
    for _ in 0..1000 {
        now += 20 * US;
        congestion.on_delivered(now, INITIAL_WINDOW / 2 - 1, delivered(1088, 20 * US));
    }
    assert_eq!(congestion.window(), INITIAL_WINDOW);
    rounds(&mut congestion, &mut now, 1, 20 * US);
    assert_eq!(congestion.window(), INITIAL_WINDOW * 2);
}

#[test]
fn a_window_is_cut_once_per_round_trip_and_by_half_at_the_first_mark() {
    let mut congestion = controlled();
    let now = start();
    let marked = Delivered { is_marked: true, ..delivered(1088, 20 * US) };
    assert_eq!(congestion.on_delivered(now, INITIAL_WINDOW, marked), Some(CutCause::Mark));
    assert_eq!(congestion.window(), INITIAL_WINDOW / 2);
    let mut in_flight = INITIAL_WINDOW - 1088;
    while in_flight > 2 * 1088 {
        assert_eq!(congestion.on_delivered(now, in_flight, marked), None);
        in_flight -= 1088;
    }
    assert_eq!(congestion.window(), INITIAL_WINDOW / 2);
}

/// Delivers a window in a round trip, of which the first so many packets are marked.
fn marked_round(congestion: &mut Congestion, now: &mut Instant, window: u64, marked: u64) {
    *now += 20 * US;
    for packet in 0..window / 1088 {
        let is_marked = packet < marked;
        let delivered = Delivered { is_marked, ..delivered(1088, 20 * US) };
        congestion.on_delivered(*now, window, delivered);
    }
}

/// What a mark leaves of a window of 100 packets, of which so many are marked in one of 20 rounds.
fn left_after_marks(marked: u64) -> f64 {
    let (mut congestion, mut now, window) = (controlled(), start(), 100 * 1088);
    let mut left = 0.0;
    for round in 0..200 {
        congestion.window = window as f64;
        marked_round(&mut congestion, &mut now, window, if round % 20 == 0 { marked } else { 0 });
        if round % 20 == 0 {
            left = congestion.threshold / window as f64;
        }
    }
    left
}

#[test]
fn where_a_queue_marks_single_packets_a_mark_cuts_as_cubic_does() {
    for marked in [1, 2, 10] {
        assert!((left_after_marks(marked) - 0.7).abs() < 0.01, "{}", left_after_marks(marked));
    }
    // Many marks in few rounds: by what is marked of everything.
    for marked in [30, 100] {
        assert!(left_after_marks(marked) > 0.75, "{}", left_after_marks(marked));
    }
}

#[test]
fn a_single_loss_without_a_queue_costs_no_window() {
    let mut congestion = controlled();
    let mut now = start();
    rounds(&mut congestion, &mut now, 3, 100 * US);
    let window = congestion.window();
    // One packet, of very many, without any queue.
    assert_eq!(congestion.on_lost(now, window, lost(1088)), None);
    assert!(congestion.window() >= window);
}

#[test]
fn a_first_mark_leaves_what_the_path_needs() {
    let mut congestion = controlled();
    let mut now = start();
    rounds(&mut congestion, &mut now, 12, 80 * US);
    congestion.on_sample(now, 20 * US);
    let window = congestion.window();
    congestion.on_lost(now, window, lost(window / 2));
    rounds(&mut congestion, &mut now, 20, 21 * US);
    let window = congestion.window();
    let marked = Delivered { is_marked: true, ..delivered(1088, 21 * US) };
    assert_eq!(congestion.on_delivered(now, window, marked), Some(CutCause::Mark));
    let needed = window as f64 * 20.0 / 21.0;
    assert!(congestion.window() as f64 >= needed * 0.95, "{} of {window}", congestion.window());
}

#[test]
fn a_loss_with_a_queue_cuts_the_window() {
    let mut congestion = controlled();
    let mut now = start();
    rounds(&mut congestion, &mut now, 1, 20 * US);
    rounds(&mut congestion, &mut now, 12, 80 * US);
    let window = congestion.window();
    assert_eq!(congestion.on_lost(now, window, lost(1088)), Some(CutCause::Loss));
    assert!(congestion.window() <= window * 3 / 5, "{} of {window}", congestion.window());
}

#[test]
fn a_cut_for_what_was_not_lost_after_all_is_taken_back_once() {
    let mut congestion = controlled();
    let mut now = start();
    rounds(&mut congestion, &mut now, 1, 20 * US);
    rounds(&mut congestion, &mut now, 12, 80 * US);
    let window = congestion.window();
    congestion.on_not_lost();
    assert_eq!(congestion.window(), window, "there was no cut");
    congestion.on_lost(now, window, lost(1088));
    let cut = congestion.window();
    assert!(cut < window);
    congestion.on_not_lost();
    assert_eq!(congestion.window(), window);
    // A cut for another reason stays.
    congestion.on_lost(now, window, lost(window));
    while congestion.last_cut() == Some(CutCause::Loss) {
        rounds(&mut congestion, &mut now, 1, 2 * MS);
    }
    let window = congestion.window();
    congestion.on_not_lost();
    assert_eq!(congestion.window(), window);
}

#[test]
fn a_round_trip_above_the_target_cuts_the_window() {
    let mut congestion = controlled();
    let mut now = start();
    rounds(&mut congestion, &mut now, 1, 20 * US);
    assert_eq!(congestion.last_cut(), None);
    let mut cuts = 0;
    for _ in 0..60 {
        let (window, round_trip) = (congestion.window(), 5 * MS);
        now += round_trip;
        if let Some(cause) = congestion.on_delivered(now, window, delivered(window, round_trip)) {
            assert_eq!(cause, CutCause::Delay);
            // In proportion, a third would be left.
            assert!(congestion.window() >= window / 2, "{} of {window}", congestion.window());
            cuts += 1;
        }
    }
    assert!(cuts > 1, "the first halves what this round has added");
    assert_eq!(congestion.last_cut(), Some(CutCause::Delay));
    assert!(congestion.window() < INITIAL_WINDOW);
}

#[test]
fn one_round_above_the_target_cuts_nothing() {
    let mut congestion = controlled();
    let mut now = start();
    // All that is in flight arrives at once, which is a round.
    let mut round = |round_trip| {
        now += round_trip;
        let window = congestion.window();
        congestion.on_delivered(now, window, delivered(window, round_trip))
    };
    for _ in 0..20 {
        let cuts = [20 * US, 20 * US, 2 * MS].map(&mut round);
        assert_eq!(cuts, [None; 3]);
    }
    assert!((0..60).any(|_| round(2 * MS) == Some(CutCause::Delay)));
}

/// CONG-031
#[test]
fn a_window_beside_messages_that_are_delayed_is_cut_by_a_shorter_queue_but_not_below_a_short_one() {
    let (mut congestion, mut now) = (controlled(), start());
    rounds(&mut congestion, &mut now, 5, 20 * US);
    let window = congestion.window();
    // A queue of 100 us.
    let mut round = |congestion: &mut Congestion, delays_others| {
        now += 120 * US;
        let window = congestion.window();
        let delivered = Delivered { delays_others, ..delivered(window, 120 * US) };
        congestion.on_delivered(now, window, delivered)
    };
    (0..60).for_each(|_| assert_eq!(round(&mut congestion, false), None));
    assert!(congestion.window() >= window);
    assert!((0..60).any(|_| round(&mut congestion, true) == Some(CutCause::Delay)));
    for _ in 0..200 {
        round(&mut congestion, true);
    }
    let short = SHORT_QUEUE as u64;
    assert!((short / 2..=short * 3 / 2).contains(&congestion.window()), "{}", congestion.window());
}

/// CONG-038
#[test]
fn late_answers_of_another_slot_of_the_process_are_no_queue_but_marks_are() {
    for is_within_process in [false, true] {
        let (mut congestion, mut now) = (controlled(), start());
        rounds(&mut congestion, &mut now, 1, 20 * US);
        let mut round = |congestion: &mut Congestion, is_marked| {
            now += 5 * MS;
            let window = congestion.window();
            let delivered = Delivered { is_within_process, is_marked, ..delivered(window, 5 * MS) };
            congestion.on_delivered(now, window, delivered)
        };
        let cut = (0..60).find_map(|_| round(&mut congestion, false));
        assert_eq!(cut, (!is_within_process).then_some(CutCause::Delay));
        let cut = (0..2).find_map(|_| round(&mut congestion, true));
        assert_eq!(cut, Some(CutCause::Mark));
    }
}

#[test]
fn a_window_below_a_packet_is_kept_by_the_pace() {
    let mut congestion = controlled();
    let mut now = start();
    rounds(&mut congestion, &mut now, 1, 20 * US);
    congestion.window = 272.0;
    let next = congestion.pace(now, None, 1088, 1088).unwrap();
    // A packet in four round trips.
    assert_eq!((next - now).as_micros(), 80);
    congestion.window = 4096.0;
    assert_eq!(congestion.pace(now, None, 1088, 1088), None);
}

#[test]
fn after_a_pause_a_window_begins_small_and_grows_fast_to_where_it_was() {
    let mut congestion = controlled();
    let mut now = start();
    rounds(&mut congestion, &mut now, 5, 100 * US);
    let window = congestion.window();
    congestion.threshold = window as f64;
    now += IDLE - MS;
    congestion.pace(now, None, 1088, 1088);
    assert_eq!(congestion.window(), window, "a shorter pause changes nothing");
    now += IDLE + MS;
    congestion.pace(now, None, 1088, 1088);
    assert_eq!(congestion.window(), INITIAL_WINDOW);
    rounds(&mut congestion, &mut now, 5, 100 * US);
    assert!(congestion.window() >= window);
}

#[test]
fn a_notification_halves_the_rate_at_first_and_once_per_interval() {
    let mut congestion = controlled();
    let mut now = start();
    rounds(&mut congestion, &mut now, 3, 100 * US);
    let delivered = congestion.rounds.rate().unwrap();
    assert_eq!(congestion.on_cnp(now), Some(CutCause::Notification));
    let rate = congestion.rate().unwrap();
    assert!((rate as f64 / delivered - 0.5).abs() < 0.01, "{rate} of {delivered}");
    now += 49 * US;
    assert_eq!(congestion.on_cnp(now), None);
    now += US;
    assert_eq!(congestion.on_cnp(now), Some(CutCause::Notification));
    assert!(congestion.rate().unwrap() < rate * 6 / 10);
}

#[test]
fn a_rate_recovers_by_halves_and_then_ends() {
    let mut congestion = controlled();
    let mut now = start();
    rounds(&mut congestion, &mut now, 3, 100 * US);
    congestion.on_cnp(now);
    let before = congestion.rate().unwrap() * 2;
    // Each step of 55 us takes half of what is missing.
    now += 5 * 55 * US;
    congestion.pace(now, None, 1088, 1088);
    let recovered = congestion.rate().unwrap() as f64 / before as f64;
    assert!((recovered - (1.0 - 0.5f64.powi(6))).abs() < 0.001, "{recovered}");
    // What is above the need of the window is no limit.
    for _ in 0..100_000 {
        now += 55 * US;
        congestion.pace(now, None, 1088, 1088);
    }
    assert_eq!(congestion.rate(), None);
}

#[test]
fn a_limited_rate_sends_in_trains() {
    let parameters = RateParameters::PAPER;
    let now = start();
    // 75 us at 100 MB/s are 7,500 bytes.
    let mut limit = RateLimit::new(now, 100e6);
    let mut sent = 0;
    let next = loop {
        sent += 1;
        if let Some(next) = limit.on_sent(now, &parameters, 1000, 1000.0) {
            break next;
        }
    };
    assert_eq!((sent, (next - now).as_micros()), (8, 80));
    // A slow one sends two packets at once, too.
    let mut limit = RateLimit::new(now, 1e6);
    assert_eq!(limit.on_sent(now, &parameters, 1000, 1000.0), None);
    assert!(limit.on_sent(now, &parameters, 1000, 1000.0).is_some());
}

#[test]
fn random_loss_costs_little() {
    for (loss, least) in [(1, 0.98), (10, 0.95), (100, 0.9), (500, 0.8)] {
        let (used, _) = settled(Network { loss, ..Network::default() });
        assert!(used >= least, "{loss} of 10,000 lost: {used}");
    }
}

#[test]
fn going_back_leaves_nearly_what_it_can_of_the_link() {
    // For each loss, 58 packets at least: 0.94, 0.63, 0.36 and 0.25 of the link if all else costs
    // nothing.
    for (loss, least) in [(10, 0.9), (100, 0.55), (300, 0.25), (500, 0.12)] {
        let (used, _) = settled(Network { loss, goes_back: true, ..Network::default() });
        assert!(used >= least, "{loss} of 10,000 lost: {used}");
    }
}

#[test]
fn a_window_that_is_sent_again_for_each_loss_comes_down_to_what_the_path_needs() {
    let mut congestion = controlled();
    let mut now = start();
    rounds(&mut congestion, &mut now, 12, 100 * US);
    // A loss that tells of congestion ends slow start.
    congestion.on_lost(now, congestion.window(), lost(congestion.window() / 2));
    rounds(&mut congestion, &mut now, 12, 100 * US);
    let needed = congestion.window();
    let loss = Lost { bytes: 1088, is_rewound: true };
    assert_eq!(congestion.on_lost(now, needed, loss), None);
    assert_eq!(congestion.window(), needed, "nothing waits");
    congestion.window = needed as f64 * 1.2;
    for _ in 0..4 {
        rounds(&mut congestion, &mut now, 2, 120 * US);
        // The queue that there is now is far from the longest that was seen: it did not overflow.
        congestion.on_sample(now, 800 * US);
        let before = congestion.window();
        assert_eq!(congestion.on_lost(now, before, loss), None);
        let left = congestion.window() as f64 / before as f64;
        assert!((0.949..=1.0).contains(&left), "{left} is left after a loss");
    }
    let left = congestion.window() as f64 / needed as f64;
    assert!((0.95..1.15).contains(&left), "{left} of what the path needs");
}

#[test]
fn a_marked_bottleneck_is_shared_evenly() {
    for lanes in [2, 8, 32, 128] {
        let network = Network { lanes, marks_above: MARKS_ABOVE, ..Network::default() };
        let (used, fairness) = settled(network);
        assert!(used >= 0.9 && fairness >= 0.95, "{lanes} lanes: {used}, {fairness}");
    }
}

#[test]
fn a_bottleneck_that_marks_single_packets_is_shared_evenly() {
    for lanes in [2, 8] {
        let network = Network { lanes, marks_above: MARKS_ABOVE, marks: 50, ..Network::default() };
        let (used, fairness) = settled(network);
        assert!(used >= 0.9 && fairness >= 0.95, "{lanes} lanes: {used}, {fairness}");
    }
}

#[test]
fn a_bottleneck_that_only_loses_is_shared_evenly_by_some_and_used_by_many() {
    for (lanes, least) in [(2, 0.95), (4, 0.95), (8, 0.95), (32, 0.9), (128, 0.7)] {
        let (used, fairness) = settled(Network { lanes, ..Network::default() });
        assert!(used >= 0.9 && fairness >= least, "{lanes} lanes: {used}, {fairness}");
    }
}

#[test]
fn notified_senders_share_evenly() {
    for lanes in [8, 32, 128] {
        let network =
            Network { lanes, marks_above: MARKS_ABOVE, notifies: true, ..Network::default() };
        let (used, fairness) = settled(network);
        assert!(used >= 0.9 && fairness >= 0.95, "{lanes} lanes: {used}, {fairness}");
    }
}

#[test]
fn latecomers_have_their_share_within_50_ms() {
    for marks_above in [MARKS_ABOVE, None] {
        let network = Network { lanes: 4, stagger: 20 * MS, marks_above, ..Network::default() };
        let mut run = Run::new(network);
        run.pass(110 * MS);
        let (used, fairness) = run.measure(50 * MS);
        assert!(used >= 0.9 && fairness >= 0.95, "{marks_above:?}: {used}, {fairness}");
    }
}

#[test]
fn a_thousand_senders_use_a_marked_bottleneck() {
    let network = Network { lanes: 1000, marks_above: MARKS_ABOVE, ..Network::default() };
    let (used, _) = settled(network);
    assert!(used >= 0.85, "{used}");
}

#[test]
fn a_long_path_is_filled_within_20_round_trips() {
    for ms in [2, 10, 100] {
        let network = Network {
            link: 10e9 / 8.0,
            round_trip: ms * MS,
            packet: 4160,
            loss: 1,
            ..Network::default()
        };
        let mut run = Run::new(network);
        run.pass(ms * MS * 20);
        let (used, _) = run.measure(ms * MS * 30);
        assert!(used >= 0.9, "{ms} ms: {used}");
    }
}

#[test]
fn a_marked_queue_does_not_run_empty() {
    let network = Network { lanes: 4, marks_above: MARKS_ABOVE, ..Network::default() };
    let mut run = Run::new(network);
    run.pass(20 * MS);
    for _ in 0..50 {
        let (used, _) = run.measure(MS);
        assert!(used >= 0.9, "{used}");
    }
}
