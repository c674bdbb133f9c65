//! A state that is written as a snapshot and read again is the same state.

mod random;

use aliquot_scheduler::policy::PolicyName;
use aliquot_scheduler::snapshot::File;
use aliquot_scheduler_core::Settings;
use random::{Numbers, disturb, file};

#[test]
fn what_is_written_is_read_as_the_same_state() {
    for seed in 0..200 {
        let mut numbers = Numbers(seed);
        let file = file(&mut numbers);
        let (mut scheduler, mut cluster) = file.restore().expect("a possible state");
        disturb(&mut scheduler, &mut cluster, &mut numbers);
        let dump = scheduler.dump(&cluster);
        let text = file.later(&scheduler, &cluster).and_then(|later| later.render()).expect("a snapshot");
        let read = File::parse(&text).expect("what was written can be read");
        let (restored_scheduler, restored) = read.restore().expect("a possible state");
        assert_eq!(restored_scheduler.dump(&restored), dump, "seed {seed}:\n{text}");
        assert_eq!(read.later(&restored_scheduler, &restored).and_then(|later| later.render()).ok(), Some(text));
    }
}

#[test]
fn what_a_live_scheduler_writes_is_read_as_what_it_knows() {
    let settings = Settings { usage_weight: 500, ..Settings::default() };
    for seed in 0..100 {
        let view = file(&mut Numbers(seed)).engine().expect("a possible state").view();
        let written = File::of_view(&view, PolicyName::default(), &settings).and_then(|file| file.render());
        let text = written.expect("a snapshot");
        assert!(text.contains("\"usage_weight_per_mille\": 500"), "{text}");
        let (restored_scheduler, restored) =
            File::parse(&text).and_then(|file| file.restore()).expect("a possible state");
        assert_eq!(restored_scheduler.dump(&restored), view.scheduler().dump(view.cluster()), "seed {seed}:\n{text}");
    }
}
