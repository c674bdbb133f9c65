//! Short helpers for the tables of the tests.

use aliquot_dialects::{Container, Core, Dialect, Memory, NodeFacts, Part, Placed, Pod, Refusal, Share, Spoken, Wish};

pub(crate) const GIB: u64 = 1 << 30;
pub(crate) const MIB: u64 = 1 << 20;

pub(crate) type Pairs<'a> = &'a [(&'a str, &'a str)];

/// A container with these resources.
pub(crate) fn container(name: &str, resources: Pairs<'_>) -> Container {
    Container { name: name.into(), resources: owned(resources).into_iter().collect() }
}

/// A pod with these annotations.
pub(crate) fn pod(containers: &[Container], annotations: Pairs<'_>) -> Pod {
    let annotations = owned(annotations).into_iter().collect();
    Pod { annotations, containers: containers.to_vec(), ..Pod::default() }
}

fn owned(pairs: Pairs<'_>) -> Vec<(String, String)> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// The wish for a pod's only container on a node that speaks `dialect`.
pub(crate) fn ask_of(
    dialect: Dialect,
    node: &NodeFacts,
    resources: Pairs<'_>,
    annotations: Pairs<'_>,
) -> Result<Wish, Refusal> {
    let pod = pod(&[container("main", resources)], annotations);
    let spoken = Spoken::new([dialect]).expect("one dialect clashes with none");
    spoken.translate(&pod, 0, node).map(|wish| wish.expect("a container that asks"))
}

pub(crate) fn ask(dialect: Dialect, resources: Pairs<'_>, annotations: Pairs<'_>) -> Result<Wish, Refusal> {
    ask_of(dialect, &NodeFacts::default(), resources, annotations)
}

/// Asserts for each line: a request for these resources gets this number of devices, and this share of each.
pub(crate) fn assert_gets(dialect: Dialect, table: &[(Pairs<'_>, u32, Share)]) {
    for (resources, devices, share) in table {
        let wish = ask(dialect, resources, &[]).unwrap_or_else(|refusal| panic!("{resources:?}: {refusal}"));
        assert_eq!((wish.dialect, wish.devices, wish.share), (dialect, *devices, *share), "{resources:?}");
    }
}

/// Asserts for each line: a request for these resources is refused, and the reason contains these words.
pub(crate) fn assert_refused(dialect: Dialect, table: &[(Pairs<'_>, &str)]) {
    assert_refused_with(dialect, &[], table);
}

/// Same as [`assert_refused`], with annotations.
pub(crate) fn assert_refused_with(dialect: Dialect, annotations: Pairs<'_>, table: &[(Pairs<'_>, &str)]) {
    for (resources, words) in table {
        let refusal = ask(dialect, resources, annotations).expect_err(&format!("{resources:?} {annotations:?}"));
        let reason = refusal.to_string();
        assert!(reason.contains(words), "{resources:?} {annotations:?}: {reason:?} lacks {words:?}");
    }
}

pub(crate) fn core(request_percent: u32, limit_percent: u32) -> Core {
    Core { request_percent, limit_percent }
}

pub(crate) fn both(core: Core, memory: Memory) -> Share {
    Share::Both { core, memory }
}

/// Memory, and all time that others leave.
pub(crate) fn memory_only(memory: Memory) -> Share {
    Share::ByMemory { memory, core_limit_percent: Some(100) }
}

/// The variables of a container on these devices, each of 16 GiB.
pub(crate) fn variables(wish: &Wish, device_indexes: &[u32]) -> Vec<(String, String)> {
    let device_memory_bytes = 16 * GIB;
    let place = |device_index: &u32| Placed {
        device_index: *device_index,
        device_memory_bytes,
        part: wish.share.on(device_memory_bytes),
    };
    wish.environment(&device_indexes.iter().map(place).collect::<Vec<_>>())
}

pub(crate) fn pairs(found: &[(String, String)]) -> Vec<(&str, &str)> {
    found.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

/// A part; the arguments are request, limit and memory.
pub(crate) fn part(core_request_percent: u32, core_limit_percent: u32, memory_bytes: u64) -> Part {
    Part { core_request_percent, core_limit_percent, memory_bytes }
}
