//! `aliquot secrets`, and jobs that name secrets.

use std::fs;

use aliquot_proto::scheduler::v1::{JobState, RemoveSecretRequest, Secret, SecretUse};

use super::scheduler::{Asked, Played, Scene, job};
use crate::support::{output, stderr, stdout};

#[test]
fn secrets_are_set_from_a_file_listed_and_removed() {
    let secret = Secret { name: "token".into(), user: "ada".into(), bytes: 7, ..Secret::default() };
    let scheduler = Played::new(Scene { secrets: Some(vec![secret]), ..Scene::default() });
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("value");
    fs::write(&file, b"\xffsesame").unwrap();
    let path = file.to_str().unwrap();
    let set = output(&mut scheduler.aliquot(&["secrets", "set", "token", "--from-file", path, "--queue", "team-a"]));
    assert_eq!(stdout(&set), "token\n", "{}", stderr(&set));
    let listed = output(&mut scheduler.aliquot(&["secrets", "list", "--json"]));
    let listed: serde_json::Value = serde_json::from_str(&stdout(&listed)).unwrap();
    assert_eq!((&listed["secrets"][0]["name"], &listed["secrets"][0]["bytes"]), (&"token".into(), &7.into()));
    assert!(output(&mut scheduler.aliquot(&["secret", "remove", "token"])).status.success());
    let removed = RemoveSecretRequest { name: "token".into(), queue: String::new() };
    let value = b"\xffsesame".to_vec();
    assert_eq!(
        scheduler.asked(),
        [Asked::SetSecret("token".into(), "team-a".into(), value), Asked::RemoveSecret(removed)]
    );

    fs::write(&file, vec![b'x'; 70_000]).unwrap();
    let refused = output(&mut scheduler.aliquot(&["secrets", "set", "token", "--from-file", path]));
    assert!(stderr(&refused).contains("more than 65536 bytes"), "{}", stderr(&refused));
    assert_eq!((refused.status.code(), scheduler.asked().len()), (Some(2), 2), "nobody was asked");
}

#[test]
fn a_scheduler_that_knows_no_secrets_is_given_no_job_with_one() {
    let scheduler = Played::with_job(job(JobState::Pending));
    let submit = ["submit", "--secret", "token:TOKEN", "--", "true"];
    let refused = output(&mut scheduler.aliquot(&submit));
    assert!(stderr(&refused).contains("of another version"), "{}", stderr(&refused));
    assert!(!refused.status.success() && scheduler.asked().is_empty());
    scheduler.change(|scene| scene.secrets = Some(Vec::new()));
    assert!(output(&mut scheduler.aliquot(&submit)).status.success());
    let asked = scheduler.asked();
    let [Asked::Submit(request)] = asked.as_slice() else { panic!("{asked:?}") };
    let named = SecretUse { name: "token".into(), variable: "TOKEN".into() };
    assert_eq!(request.spec.as_ref().unwrap().secrets, [named]);
}
