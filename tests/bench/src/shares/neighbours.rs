//! Containers that are always busy and together fill a device.

use crate::shares::judgement::{self, Wanted};
use crate::shares::stage::{Stage, Tenant, share};
use crate::shares::{Depth, MS, US, duration};

/// The containers of a case: percent, and the length of the kernels.
type Neighbours = Vec<(u32, u64)>;

/// Measures them one case after the other.
pub(super) fn measure(depth: Depth) {
    let mut table = judgement::table("always busy neighbours");
    let ten = [50 * US, 200 * US, MS, 5 * MS, 20 * MS];
    let cases: Vec<Neighbours> = vec![
        vec![(30, MS), (70, MS)],
        vec![(20, 50 * US), (30, MS), (50, 20 * MS)],
        vec![(50, MS), (50, MS)],
        vec![(30, 50 * US), (70, 20 * MS)],
        vec![(30, 20 * MS), (70, 50 * US)],
        vec![(30, 200 * MS), (70, MS)],
        (0..10).map(|number| (10, ten[number % ten.len()])).collect(),
    ];
    for neighbours in depth.of(cases, 2) {
        let stage = Stage::new();
        let tenants: Vec<Tenant> = neighbours
            .iter()
            .enumerate()
            .map(|(number, &(percent, kernel_ns))| {
                stage.tenant(&format!("neighbour-{number}"), share(percent), 1, &format!("kernels={kernel_ns}"))
            })
            .collect();
        let recording = stage.play(&tenants.iter().collect::<Vec<_>>(), depth.window_ns());
        let all = neighbours.iter().map(|(percent, _)| percent.to_string()).collect::<Vec<_>>().join("+");
        for (user, &(percent, kernel_ns)) in neighbours.iter().enumerate() {
            let what = format!("{all}: {percent} %, kernels of {}", duration(kernel_ns));
            judgement::add(
                &mut table,
                Wanted { what, percent: f64::from(percent), longest_ns: None },
                &recording,
                user,
            );
        }
    }
}
