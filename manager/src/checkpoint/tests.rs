use std::time::SystemTime;

use aliquot_node::QosClass;

use super::*;
use crate::inventory::DeviceUuid;
use crate::slices::{Part, Published, SliceId};

fn contents() -> Contents {
    let part = Part {
        device: DeviceUuid::new("GPU-1"),
        core_request_percent: 30,
        core_limit_percent: 60,
        memory_limit_bytes: u64::MAX,
    };
    let slice = Slice {
        name: "train-1".into(),
        id: SliceId::from_random(u128::MAX / 3),
        parts: vec![part],
        host_memory_limit_bytes: 0,
        qos_class: QosClass::LatencyCritical,
        audit_policy: None,
        published: Published::default(),
        created: SystemTime::now(),
        description: "\"quoted\"\n".into(),
        pod_uid: Some("uid-1".into()),
        owner: None,
        users: [7].into(),
    };
    Contents::new("boot".into(), vec![Entry { phase: Phase::Ready, slice }])
}

fn loaded(checkpoint: &Checkpoint) -> Contents {
    match checkpoint.load().unwrap() {
        Found::Whole(contents) => contents,
        other => panic!("{other:?}"),
    }
}

/// A slice of one device, by its number.
pub(crate) fn slice(number: u128) -> Slice {
    let Entry { slice, .. } = contents().slices.remove(0);
    Slice {
        name: format!("slice-{number}"),
        id: SliceId::from_random(number),
        created: SystemTime::UNIX_EPOCH,
        ..slice
    }
}

/// A checkpoint with `contents` saved, and the paths of its file and copy.
fn saved(dir: &Path, contents: &Contents) -> (Checkpoint, [PathBuf; 2]) {
    let checkpoint = Checkpoint::new(Some(dir.into()));
    checkpoint.save(contents).unwrap();
    (checkpoint, [dir.join(FILE), dir.join(COPY)])
}

#[test]
fn the_saved_state_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(Checkpoint::new(Some(dir.path().into())).load().unwrap(), Found::Nothing);
    let contents = contents();
    let (checkpoint, _) = saved(dir.path(), &contents);
    assert_eq!(loaded(&checkpoint), contents);
}

#[test]
fn a_checkpoint_of_before_a_field_was_kept_is_taken_up() {
    let dir = tempfile::tempdir().unwrap();
    let (checkpoint, [path, _]) = saved(dir.path(), &contents());
    let mut value: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let slice = value["slices"][0].as_object_mut().unwrap();
    assert_eq!(slice.remove("priority_class").unwrap(), "latency-critical");
    slice.remove("host_memory_limit_bytes").unwrap();
    slice.remove("pod_uid").unwrap();
    fs::write(&path, value.to_string()).unwrap();
    let loaded = loaded(&checkpoint).slices.remove(0).slice;
    assert_eq!((loaded.qos_class, loaded.host_memory_limit_bytes, loaded.pod_uid), (QosClass::Standard, 0, None));
}

#[test]
fn a_newer_checkpoint_is_refused_by_name_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (checkpoint, files) = saved(dir.path(), &contents());
    let newer = "{\"version\": 2, \"new\": []}";
    for path in files.iter().rev() {
        fs::write(path, newer).unwrap();
        if path == &files[0] {
            let error = checkpoint.load().unwrap_err();
            assert!(matches!(error, CheckpointError::Version { found: 2, .. }), "{error}");
            assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        }
        assert_eq!(fs::read_to_string(path).unwrap(), newer);
    }
}

#[test]
fn the_copy_stands_in_for_a_damaged_or_missing_file() {
    let dir = tempfile::tempdir().unwrap();
    let contents = contents();
    let (checkpoint, [path, copy]) = saved(dir.path(), &contents);
    for text in ["", "{", "[]", "{\"version\": 1}", "\0\0\0\0"] {
        fs::write(&path, text).unwrap();
        let Found::Copy(found, problem) = checkpoint.load().unwrap() else { panic!("{text}") };
        assert_eq!(found, contents);
        assert!(problem.contains(path.to_str().unwrap()) && problem.contains("damaged"), "{problem}");
    }
    let aside = checkpoint.set_aside().unwrap();
    assert_eq!(fs::read(aside).unwrap(), [0; 4]);
    assert!(matches!(checkpoint.load().unwrap(), Found::Copy(..)));
    fs::write(&copy, "{").unwrap();
    assert!(matches!(checkpoint.load().unwrap(), Found::Lost(_)));
    fs::remove_file(&copy).unwrap();
    assert_eq!(checkpoint.load().unwrap(), Found::Nothing);
    fs::write(&path, "").unwrap();
    assert!(matches!(checkpoint.load().unwrap(), Found::Lost(_)));
}

#[test]
fn a_failed_write_leaves_the_former_state() {
    let dir = tempfile::tempdir().unwrap();
    let (checkpoint, _) = saved(dir.path(), &contents());
    // A directory in the place of the temporary file: even root cannot write to it.
    fs::create_dir(dir.path().join(".checkpoint.new")).unwrap();
    checkpoint.save(&Contents::new("other".into(), Vec::new())).unwrap_err();
    assert_eq!(loaded(&checkpoint).boot_id, "boot");
}

#[test]
fn a_shorter_state_can_overwrite_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let (checkpoint, [path, _]) = saved(dir.path(), &contents());
    let length = fs::metadata(&path).unwrap().len();
    let shorter = Contents::new("boot".into(), Vec::new());
    overwrite(&path, &serde_json::to_vec(&shorter).unwrap()).unwrap();
    assert_eq!((loaded(&checkpoint), fs::metadata(&path).unwrap().len()), (shorter.clone(), length));
    overwrite(&path, &vec![b' '; length as usize + 1]).unwrap_err();
    assert_eq!(loaded(&checkpoint), shorter);
}

#[test]
fn nothing_is_overwritten_in_place_unless_the_copy_holds_the_former_state() {
    let dir = tempfile::tempdir().unwrap();
    let (_, [path, copy]) = saved(dir.path(), &contents());
    let (file, shorter) = (fs::read(&path).unwrap(), Contents::new("boot".into(), Vec::new()));
    let shorter = serde_json::to_vec(&shorter).unwrap();
    // The copy is one change behind, and the new state does not fit: then the copy is first made equal to the file.
    let stale = serde_json::to_vec_pretty(&Contents::new("former".into(), contents().slices)).unwrap();
    fs::write(&copy, [&stale[..], b"\n\n\n"].concat()).unwrap();
    overwrite_beside_copy(&path, &copy, &vec![b' '; file.len() + 1]).unwrap_err();
    assert_eq!(fs::read(&path).unwrap(), file);
    assert_eq!(fs::read(&copy).unwrap().trim_ascii_end(), file.trim_ascii_end());
    // There is no copy, or none that could hold the file.
    for text in [None, Some("{")] {
        fs::remove_file(&copy).unwrap();
        text.into_iter().for_each(|text| fs::write(&copy, text).unwrap());
        overwrite_beside_copy(&path, &copy, &shorter).unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), file);
        fs::write(&copy, "").unwrap();
    }
    // The file is damaged. Then the copy holds the only state, and stays as it is.
    fs::write(&copy, &file).unwrap();
    fs::write(&path, vec![0; file.len()]).unwrap();
    overwrite_beside_copy(&path, &copy, &shorter).unwrap();
    assert_eq!(fs::read(&copy).unwrap(), file);
    assert_eq!(fs::read(&path).unwrap().trim_ascii_end(), shorter);
}
