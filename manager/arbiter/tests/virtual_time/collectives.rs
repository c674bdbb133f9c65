//! Containers with several devices, whose kernels wait for each other.

use aliquot_arbiter::ContainerId;

use crate::process::Program;
use crate::shares::burstable;
use crate::world::{MS, SECOND, World};

const US: u64 = 1_000;

/// How a gang launches its kernels.
#[derive(Clone, Copy, Debug)]
enum Launches {
    /// One thread launches on one device after the other.
    OneThread,
    /// One process for each device; every `meets_every`th kernel waits for its peers.
    Processes { meets_every: u64 },
}

/// A container with several devices.
#[derive(Clone, Debug)]
struct Gang {
    devices: Vec<usize>,
    percent: u32,
    kernel_ns: u64,
    launches: Launches,
}

/// A container with one device.
#[derive(Clone, Copy, Debug)]
struct Single {
    device: usize,
    percent: u32,
    kernel_ns: u64,
}

/// Containers that are always busy; the gangs come first.
#[derive(Clone, Debug, Default)]
struct Crowd {
    gangs: Vec<Gang>,
    singles: Vec<Single>,
}

/// A crowd that is running.
struct Run {
    world: World,
    crowd: Crowd,
    /// One process of each gang.
    processes: Vec<usize>,
}

impl Run {
    fn new(seed: u64, crowd: &Crowd) -> Self {
        let mut run = Self { world: World::new(seed, 4), crowd: crowd.clone(), processes: Vec::new() };
        for (id, gang) in crowd.gangs.iter().enumerate() {
            let container = ContainerId(id as u64);
            for &device in &gang.devices {
                run.world.add_container(device, container, burstable(gang.percent));
            }
            let program = Program::endless(&[gang.kernel_ns]);
            let processes = match gang.launches {
                Launches::OneThread => run.world.start_gang_of_one_thread(container, &gang.devices, &program),
                Launches::Processes { meets_every } => {
                    run.world.start_gang(container, &gang.devices, &program, meets_every)
                }
            };
            run.processes.push(processes[0]);
        }
        for (number, single) in crowd.singles.iter().enumerate() {
            let container = run.single(number);
            run.world.add_container(single.device, container, burstable(single.percent));
            run.world.start(single.device, container, Program::endless(&[single.kernel_ns]));
        }
        run
    }

    fn single(&self, number: usize) -> ContainerId {
        ContainerId((self.crowd.gangs.len() + number) as u64)
    }

    /// Device time that gang number `number` has used on each of its devices so far.
    fn done_ns(&self, number: usize) -> u64 {
        let process = self.world.processes[self.processes[number]].as_ref().unwrap();
        process.kernels_done * self.crowd.gangs[number].kernel_ns
    }

    /// Asserts that each gang has done at least `least_percent` of what is possible in `ideal` percent of the time, and
    /// that its neighbours have got their requests, less `off_bp` hundredths of a percent.
    fn assert_after(&self, ideal: &[u64], least_percent: u64, off_bp: u64) {
        let now_ns = self.world.now_ns;
        for (number, ideal) in ideal.iter().enumerate() {
            let done_bp = self.done_ns(number) * 10_000 / now_ns;
            assert!(done_bp >= ideal * least_percent, "{:?}: gang {number} did {done_bp} bp of {ideal} %", self.crowd);
        }
        for (number, single) in self.crowd.singles.iter().enumerate() {
            let used_ns = self.world.record(single.device, self.single(number)).used_ns;
            let used_bp = used_ns * 10_000 / now_ns;
            assert!(
                used_bp + off_bp >= u64::from(single.percent) * 100,
                "{:?}: {single:?} got {used_bp} bp",
                self.crowd
            );
        }
    }
}

const KERNELS_NS: [u64; 4] = [50 * US, 500 * US, 2 * MS, 10 * MS];

fn gang(devices: &[usize], percent: u32, kernel_ns: u64, launches: Launches) -> Gang {
    Gang { devices: devices.to_vec(), percent, kernel_ns, launches }
}

fn single(device: usize, percent: u32, kernel_ns: u64) -> Single {
    Single { device, percent, kernel_ns }
}

/// Runs `crowd` for ten seconds.
fn assert_progress(crowd: &Crowd, ideal: &[u64], least_percent: u64, off_bp: u64) {
    let mut run = Run::new(1, crowd);
    run.world.run_until(10 * SECOND);
    run.assert_after(ideal, least_percent, off_bp);
}

#[test]
fn a_gang_beside_neighbours_with_kernels_of_any_length_loses_little() {
    for kernel_ns in KERNELS_NS {
        for neighbour_ns in [50 * US, MS, 20 * MS, 100 * MS] {
            let crowd = Crowd {
                gangs: vec![gang(&[0, 1], 50, kernel_ns, Launches::OneThread)],
                singles: vec![single(0, 50, MS), single(1, 50, neighbour_ns)],
            };
            assert_progress(&crowd, &[50], 88, 300);
        }
    }
}

#[test]
fn two_gangs_on_the_same_devices_take_turns() {
    for kernel_ns in KERNELS_NS {
        let gangs = vec![gang(&[0, 1], 50, kernel_ns, Launches::OneThread); 2];
        assert_progress(&Crowd { gangs, singles: Vec::new() }, &[50, 50], 95, 0);
    }
}

#[test]
fn three_gangs_in_a_ring_do_not_wait_for_each_other_in_a_circle() {
    for kernel_ns in KERNELS_NS {
        let gangs = [[0, 1], [1, 2], [2, 0]].map(|devices| gang(&devices, 50, kernel_ns, Launches::OneThread));
        // Any two of them share a device, so only one runs at a time.
        assert_progress(&Crowd { gangs: gangs.to_vec(), singles: Vec::new() }, &[33; 3], 90, 0);
    }
}

#[test]
fn a_gang_of_four_devices_beside_another_one_and_neighbours_with_long_kernels() {
    for kernel_ns in KERNELS_NS {
        let crowd = Crowd {
            gangs: vec![
                gang(&[0, 1, 2, 3], 40, kernel_ns, Launches::OneThread),
                gang(&[1, 2], 30, kernel_ns, Launches::OneThread),
            ],
            singles: vec![single(0, 60, MS), single(1, 30, 20 * MS), single(3, 60, 5 * MS)],
        };
        assert_progress(&crowd, &[40, 30], 82, 300);
    }
}

/// Each process of a container launches on one device, and every kernel, or every tenth one, waits for its peer.
#[test]
fn processes_whose_kernels_wait_for_a_peer_make_progress() {
    for (kernel_ns, meets_every) in KERNELS_NS.into_iter().flat_map(|kernel_ns| [(kernel_ns, 1), (kernel_ns, 10)]) {
        let processes = |devices: &[usize]| gang(devices, 50, kernel_ns, Launches::Processes { meets_every });
        let beside_others =
            Crowd { gangs: vec![processes(&[0, 1])], singles: vec![single(0, 50, MS), single(1, 50, 20 * MS)] };
        assert_progress(&beside_others, &[50], 12, 300);
        let two = Crowd { gangs: vec![processes(&[0, 1]); 2], singles: Vec::new() };
        // The progress depends on how their waits happen to fall.
        assert_progress(&two, &[50, 50], 18, 0);
    }
}

/// Shares may differ between devices, and each device may have work of its own.
#[test]
fn devices_without_common_work_have_their_own_shares() {
    let mut world = World::new(1, 2);
    for (device, percent) in [(0, 20), (1, 60)] {
        world.add_container(device, ContainerId(0), crate::shares::capped(percent));
        world.start(device, ContainerId(0), Program::endless(&[500 * US]));
    }
    world.run_until(10 * SECOND);
    for (device, percent) in [(0, 20), (1, 60)] {
        let used_bp = world.record(device, ContainerId(0)).used_ns / (10 * SECOND / 10_000);
        assert!(used_bp.abs_diff(percent * 100) <= 160, "device {device}: {used_bp} bp");
    }
}

/// Two gangs on two of four devices each, beside neighbours.
fn any_crowd(seed: u64) -> Crowd {
    let mut random = crate::random::Random::new(seed);
    let mut left = [100_u32; 4];
    let mut crowd = Crowd::default();
    for _ in 0..2 {
        let first = random.between(0, 3) as usize;
        let devices = vec![first, (first + 1) % 4];
        let percent = *random.pick(&[20, 30, 40]);
        devices.iter().for_each(|&device| left[device] -= percent);
        crowd.gangs.push(gang(&devices, percent, *random.pick(&KERNELS_NS), Launches::OneThread));
    }
    for (device, percent) in left.into_iter().enumerate() {
        crowd.singles.push(single(device, percent, *random.pick(&[100 * US, MS, 20 * MS])));
    }
    crowd
}

#[test]
fn any_two_gangs_make_progress_and_leave_others_their_share() {
    for seed in 0..100 {
        let crowd = any_crowd(seed);
        let mut run = Run::new(seed, &crowd);
        let mut before_ns = vec![0; crowd.gangs.len()];
        for second in 1..=4 {
            run.world.run_until(second * SECOND);
            let done_ns: Vec<u64> = (0..crowd.gangs.len()).map(|number| run.done_ns(number)).collect();
            let all_did = done_ns.iter().zip(&before_ns).all(|(now, before)| now > before);
            assert!(all_did, "seed {seed}, second {second}: {done_ns:?} after {before_ns:?} in {crowd:?}");
            before_ns = done_ns;
        }
        run.assert_after(&[], 0, 600);
    }
}
