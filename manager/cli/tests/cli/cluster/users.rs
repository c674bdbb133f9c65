//! `aliquot users`, and the file of credentials that it writes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use aliquot_proto::scheduler::v1::{Role, User};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::scheduler::{Asked, Played, Scene};
use crate::support::{aliquot, output, stderr, stdout};

#[test]
fn a_new_user_gets_a_file_that_nobody_else_can_read() {
    let scheduler = Played::new(Scene::default());
    let dir = tempfile::tempdir().unwrap();
    let mut command = scheduler.aliquot(&["users", "add", "ada", "--queue", "team-a", "--as", "bob", "--valid", "2d"]);
    let added = output(command.current_dir(dir.path()));
    assert_eq!(stdout(&added), "ada-credentials.toml\n", "{}", stderr(&added));
    let file = dir.path().join("ada-credentials.toml");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(&file).unwrap();
    for part in ["user = \"ada\"", "head:7460", "BEGIN CERTIFICATE", "PRIVATE KEY"] {
        assert!(text.contains(part), "{text}");
    }
    let asked = scheduler.asked();
    let [Asked::AddUser(request)] = asked.as_slice() else { panic!("one question: {asked:?}") };
    assert!(request.certificate_request.contains("BEGIN CERTIFICATE REQUEST"), "the key stays here: {request:?}");
    let user = User { name: "ada".into(), queues: vec!["team-a".into()], runs_as: "bob".into(), ..User::default() };
    assert_eq!((request.user.as_ref(), request.valid_ms, request.replace), (Some(&user), 172_800_000, false));

    // The file is not replaced, and this is checked before the scheduler is asked.
    let again = output(command.current_dir(dir.path()));
    assert!(stderr(&again).contains("--output"), "{}", stderr(&again));
    assert_eq!(scheduler.asked().len(), 1);
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
}

#[test]
fn a_user_who_is_not_added_leaves_no_file() {
    let user = User { name: "ada".into(), ..User::default() };
    let scheduler = Played::new(Scene { users: vec![user], ..Scene::default() });
    let dir = tempfile::tempdir().unwrap();
    let refused = output(scheduler.aliquot(&["user", "add", "ada"]).current_dir(dir.path()));
    assert!(stderr(&refused).contains("already"), "{}", stderr(&refused));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn who_interrupts_gets_no_file_and_is_told_what_to_do() {
    let scheduler = Played::new(Scene { loses_answers: true, ..Scene::default() });
    let dir = tempfile::tempdir().unwrap();
    for (asked, (signal, code)) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)].into_iter().enumerate() {
        let mut adding = scheduler.aliquot(&["users", "add", "ada"]);
        let adding = adding.current_dir(dir.path()).stderr(Stdio::piped()).spawn().unwrap();
        scheduler.wait_for(asked + 1, |asked| matches!(asked, Asked::AddUser(_)));
        kill(Pid::from_raw(adding.id().cast_signed()), signal).unwrap();
        let ended = adding.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(code), "{}", stderr(&ended));
        assert!(stderr(&ended).contains("--replace"), "{}", stderr(&ended));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

#[test]
fn credentials_on_standard_output_can_be_json() {
    let scheduler = Played::new(Scene::default());
    let added = output(&mut scheduler.aliquot(&["users", "add", "ada", "-o", "-", "--json"]));
    let object: serde_json::Value = serde_json::from_str(&stdout(&added)).unwrap();
    assert_eq!(object["user"]["name"], "ada");
    assert!(object["credentials"].as_str().unwrap().contains("BEGIN CERTIFICATE"), "{object}");
    let added = output(&mut scheduler.aliquot(&["users", "add", "ada", "-o", "-"]));
    assert!(stdout(&added).contains("\nuser = \"ada\"\n"), "{}", stdout(&added));
    assert!(stderr(&added).contains("put it at ~/.config/aliquot"), "{}", stderr(&added));
}

#[test]
fn another_certificate_leaves_rights_that_are_not_named() {
    let mut user = User { name: "ada".into(), queues: vec!["a".into()], runs_as: "ada".into(), ..User::default() };
    user.set_role(Role::User);
    let mut configured = User { name: "bob".into(), is_configured: true, ..User::default() };
    configured.set_role(Role::Viewer);
    let scheduler = Played::new(Scene { users: vec![user.clone(), configured], ..Scene::default() });
    for (name, options, wanted) in [
        ("ada", &[][..], user.clone()),
        ("ada", &["--as", "eve"][..], User { runs_as: "eve".into(), ..user.clone() }),
        // Whose rights are in the configuration: none may be sent.
        ("bob", &[][..], User { name: "bob".into(), ..User::default() }),
        ("new", &[][..], User { name: "new".into(), ..User::default() }),
    ] {
        let added = output(scheduler.aliquot(&["users", "add", name, "--replace", "-o", "-"]).args(options));
        assert!(stdout(&added).contains("BEGIN CERTIFICATE"), "{}", stderr(&added));
        let asked = scheduler.asked();
        let Some(Asked::AddUser(request)) = asked.last() else { panic!("{asked:?}") };
        assert_eq!(request.user, Some(wanted), "{name} {options:?}");
        assert!(request.replace && request.certificate_request.contains("BEGIN CERTIFICATE REQUEST"));
    }
}

#[test]
fn users_are_listed_changed_and_removed() {
    let mut user = User { name: "ada".into(), queues: vec!["a".into()], runs_as: "ada".into(), ..User::default() };
    user.set_role(Role::User);
    let scheduler = Played::new(Scene { users: vec![user.clone()], ..Scene::default() });
    let listed = stdout(&output(&mut scheduler.aliquot(&["users", "--json"])));
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["users"][0]["role"], "user");
    let set = output(&mut scheduler.aliquot(&["users", "set", "ada", "--queue", "b"]));
    assert_eq!(stdout(&set), "ada\n", "{}", stderr(&set));
    assert!(output(&mut scheduler.aliquot(&["users", "remove", "ada"])).status.success());
    let asked = scheduler.asked();
    let [Asked::AddUser(changed), Asked::RemoveUser(removed)] = asked.as_slice() else { panic!("{asked:?}") };
    assert_eq!(changed.user, Some(User { queues: vec!["b".into()], ..user }));
    assert_eq!((changed.replace, changed.certificate_request.as_str(), removed.as_str()), (true, "", "ada"));
    let unknown = output(&mut scheduler.aliquot(&["users", "set", "eve", "--all-queues"]));
    assert!(stderr(&unknown).contains("no user \"eve\""), "{}", stderr(&unknown));
}

#[test]
fn credentials_that_cannot_be_used_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("credentials.toml");
    fs::write(&file, "nonsense").unwrap();
    let refused = output(&mut aliquot(["--scheduler", file.to_str().unwrap(), "jobs"]));
    let said = stderr(&refused);
    assert!(said.contains("credentials.toml cannot be used") && said.contains("aliquot users add"), "{said}");
    assert!(said.contains("warning: other users can read"), "{said}");
}
