//! Whether `cuGetProcAddress` gives the address that `dlsym` gives, for every line of the table. Where it does, a shim may
//! tell a function by its address.

use aliquot_abi::cuda::{CU_GET_PROC_ADDRESS_LEGACY_STREAM, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM};

use crate::cases::lookup::{bare, by_dlsym, by_proc_address, text};
use crate::driver::{Line, TABLE};
use crate::findings::Findings;
use crate::scene::Scene;

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let (mut same, mut differ, mut only_exported, mut only_given) = (0, Vec::new(), Vec::new(), Vec::new());
    for Line { symbol, name, since, is_per_thread } in TABLE {
        let flags = if *is_per_thread {
            CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
        } else {
            CU_GET_PROC_ADDRESS_LEGACY_STREAM
        };
        match (by_dlsym(scene, symbol), by_proc_address(scene, text(name), *since, flags)) {
            (Some(exported), Some(given)) if exported == given => same += 1,
            (Some(_), Some(_)) => differ.push(bare(symbol)),
            (Some(_), None) => only_exported.push(bare(symbol)),
            (None, Some(_)) => only_given.push(bare(symbol)),
            (None, None) => {}
        }
    }
    findings.figure("functions with one address, by dlsym and by cuGetProcAddress", f64::from(same), "");
    for (what, names) in [
        ("functions with two addresses", differ),
        ("functions that only dlsym finds", only_exported),
        ("functions that only cuGetProcAddress finds", only_given),
    ] {
        findings.figure(what, names.len() as f64, "");
        findings.answer(what, names.join(" "));
    }
    Ok(())
}
