//! `aliquot users`: the users who may call the scheduler from other machines, and their rights.

use std::fs;
use std::path::{Path, PathBuf};

use aliquot_proto::scheduler::v1::{AddUserRequest, AddUserResponse, ListUsersRequest, RemoveUserRequest, Role, User};
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use tonic::Response;

use super::credentials::{self, Credentials};
use super::signals::Signals;
use super::{Client, clock_human, connect_to_running, failed, now_unix_ms};
use crate::args::{RoleWord, UserAddArgs, UserRemoveArgs, UserRights, UserSetArgs, UsersArgs, UsersCommand};
use crate::error::{Failure, Result, exit};
use crate::output::{self, Look};
use crate::table::{Align, Table, printable};

/// Prints the users, or changes one.
pub(crate) async fn users(socket: Option<&Path>, args: &UsersArgs) -> Result<()> {
    let mut client = connect_to_running(socket).await?;
    match &args.command {
        None => list(&mut client, args.json).await,
        Some(UsersCommand::Add(args)) => add(&mut client, args).await,
        Some(UsersCommand::Set(args)) => set(&mut client, args).await,
        Some(UsersCommand::Remove(args)) => remove(&mut client, args).await,
    }
}

async fn known(client: &mut Client) -> Result<Vec<User>> {
    Ok(client.list_users(ListUsersRequest {}).await.map_err(failed)?.into_inner().users)
}

/// The user of other machines with this name.
async fn find(client: &mut Client, name: &str) -> Result<Option<User>> {
    Ok(known(client).await?.into_iter().find(|user| user.name == name && !user.is_local))
}

async fn list(client: &mut Client, as_json: bool) -> Result<()> {
    let users = known(client).await?;
    if as_json {
        return output::print_json(&json!({ "users": users.iter().map(of_user).collect::<Vec<_>>() }));
    }
    output::print(&text(&users, Look::of_stdout(), now_unix_ms()))
}

/// Adds a user, and writes the user's file of credentials.
async fn add(client: &mut Client, args: &UserAddArgs) -> Result<()> {
    let name = args.name.as_str();
    let before = if args.replace { find(client, name).await? } else { None };
    let user = match before {
        // The scheduler takes no rights of a user whose rights are in its configuration.
        Some(before) if !before.is_configured => changed(before, &args.rights, false),
        _ => User { name: name.to_owned(), ..given(&args.rights) },
    };
    let (key, certificate_request) = key_and_request()?;
    let request = AddUserRequest {
        user: Some(user),
        certificate_request,
        valid_ms: args.valid.map_or(0, |valid| valid.duration().as_millis() as u64),
        replace: args.replace,
    };
    let to = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("{name}-credentials.toml")));
    let to = Some(to).filter(|to| to != Path::new("-"));
    let signals = Signals::new()?;
    // The file is made first, so that nothing is changed if it cannot be made.
    let file = to.as_ref().map(|to| credentials::create(to)).transpose()?;
    let answer = add_unless_interrupted(client, request, signals).await.inspect_err(|_| {
        // The file is still empty.
        to.iter().for_each(|to| _ = fs::remove_file(to));
    })?;
    let text = of_answer(name, &key, &answer).text()?;
    if let (Some(file), Some(to)) = (&file, &to) {
        credentials::write(file, to, &text)?;
    }
    let user = answer.user.unwrap_or_default();
    match (args.json, &to) {
        (true, Some(to)) => return output::print_json(&json!({ "user": of_user(&user), "file": to })),
        (true, None) => return output::print_json(&json!({ "user": of_user(&user), "credentials": text })),
        (false, Some(to)) => output::print(&format!("{}\n", to.display()))?,
        (false, None) => output::print(&text)?,
    }
    output::say(printable(&advice(&user, to.as_deref(), answer.certificate.is_empty())));
    Ok(())
}

async fn add_unless_interrupted(
    client: &mut Client,
    request: AddUserRequest,
    mut signals: Signals,
) -> Result<AddUserResponse> {
    tokio::select! {
        answered = client.add_user(request) => answered.map(Response::into_inner).map_err(failed),
        signal = signals.end() => Err(Failure::new("interrupted before the scheduler had answered")
            .hint("the user may have been added all the same, without a file; repeat it with --replace")
            .exit(exit::of_signal(signal))),
    }
}

/// The use of the credentials in `file`, or on standard output, and the rights that the user still lacks.
fn advice(user: &User, file: Option<&Path>, is_from_elsewhere: bool) -> String {
    let name = &user.name;
    let place = match file {
        Some(file) => format!("aliquot --scheduler {} jobs, or put it at ", file.display()),
        None => "put it at ".to_owned(),
    };
    let mut advice = if is_from_elsewhere {
        format!(
            "This scheduler signs no certificates. {name} needs one with this common name and the organization aliquot:users; \
             write it and its key, or their paths, into the file."
        )
    } else {
        format!(
            "Give the file only to {name}. It is valid until {}. On another machine: \
             {place}~/.config/aliquot/credentials.toml.",
            clock_human(user.expires_unix_ms)
        )
    };
    if user.runs_as.is_empty() && matches!(user.role(), Role::User | Role::Administrator) {
        advice += &format!(
            " {name} cannot submit jobs until you say as which local user they run: aliquot users set {name} --as USER"
        );
    }
    advice
}

fn key_and_request() -> Result<(KeyPair, String)> {
    let made = KeyPair::generate().and_then(|key| {
        let request = CertificateParams::default().serialize_request(&key)?.pem()?;
        Ok((key, request))
    });
    made.map_err(|error| Failure::new(format!("cannot make a key: {error}")))
}

fn of_answer(name: &str, key: &KeyPair, answer: &AddUserResponse) -> Credentials {
    let AddUserResponse { certificate, authority, addresses, .. } = answer;
    let is_from_elsewhere = certificate.is_empty();
    Credentials {
        user: name.to_owned(),
        schedulers: addresses.clone(),
        authority: authority.clone(),
        certificate: if is_from_elsewhere { format!("{name}.pem") } else { certificate.clone() },
        key: if is_from_elsewhere { format!("{name}.key") } else { key.serialize_pem() },
    }
}

/// Changes the rights of a user that the options name. The certificate stays valid.
async fn set(client: &mut Client, args: &UserSetArgs) -> Result<()> {
    let name = args.name.as_str();
    let before = find(client, name).await?.ok_or_else(|| {
        Failure::new(format!("there is no user {name:?} on other machines")).hint("see them: aliquot users")
    })?;
    let user = Some(changed(before, &args.rights, args.all_queues));
    let request = AddUserRequest { user, replace: true, ..AddUserRequest::default() };
    let user = client.add_user(request).await.map_err(failed)?.into_inner().user.unwrap_or_default();
    if args.json {
        return output::print_json(&of_user(&user));
    }
    output::print(&format!("{}\n", printable(&user.name)))
}

/// The user with the rights that are given. Rights that are not given stay.
fn changed(before: User, rights: &UserRights, all_queues: bool) -> User {
    let given = given(rights);
    let role = if rights.role.is_some() { given.role } else { before.role };
    let queues = match given.queues.as_slice() {
        // Users of other roles have no list of queues.
        [] if all_queues || role != i32::from(Role::User) => Vec::new(),
        [] => before.queues,
        _ => given.queues,
    };
    let runs_as = if given.runs_as.is_empty() { before.runs_as } else { given.runs_as };
    User { name: before.name, role, queues, runs_as, ..User::default() }
}

fn given(rights: &UserRights) -> User {
    let role = match rights.role {
        None => Role::Unspecified,
        Some(RoleWord::User) => Role::User,
        Some(RoleWord::Viewer) => Role::Viewer,
        Some(RoleWord::Administrator) => Role::Administrator,
    };
    User {
        role: role.into(),
        queues: rights.queue.iter().map(|queue| queue.as_str().to_owned()).collect(),
        runs_as: rights.runs_as.as_ref().map(|user| user.as_str().to_owned()).unwrap_or_default(),
        ..User::default()
    }
}

async fn remove(client: &mut Client, args: &UserRemoveArgs) -> Result<()> {
    let name = args.name.as_str();
    client.remove_user(RemoveUserRequest { name: name.to_owned() }).await.map_err(failed)?;
    if args.json {
        return output::print_json(&json!({ "removed": name }));
    }
    Ok(())
}

fn role_word(user: &User) -> &'static str {
    match user.role() {
        Role::Unspecified | Role::User => "user",
        Role::Viewer => "viewer",
        Role::Administrator => "administrator",
        Role::None => "none",
    }
}

fn of_user(user: &User) -> Value {
    json!({
        "name": user.name,
        "role": role_word(user),
        "queues": user.queues,
        "runs_as": user.runs_as,
        "expires_unix_ms": user.expires_unix_ms,
        "is_local": user.is_local,
        "is_configured": user.is_configured,
    })
}

fn text(users: &[User], look: Look, now_unix_ms: u64) -> String {
    if users.is_empty() {
        return "No users beside those of the scheduler's machine. Add one of another machine: aliquot users add NAME\n"
            .to_owned();
    }
    let mut table = Table::new([
        ("USER", Align::Left),
        ("FROM", Align::Left),
        ("ROLE", Align::Left),
        ("QUEUES", Align::Left),
        ("RUNS AS", Align::Left),
        ("CERTIFICATE UNTIL", Align::Left),
        ("SET BY", Align::Left),
    ]);
    for user in users {
        let queues = match (user.role(), user.queues.as_slice()) {
            (Role::User | Role::Unspecified, []) => "all".to_owned(),
            (_, []) => "-".to_owned(),
            (_, queues) => queues.join(","),
        };
        let runs_as = match (user.is_local, user.runs_as.as_str()) {
            (true, _) => "itself",
            (false, "") => "-",
            (false, other) => other,
        };
        let until = match user.expires_unix_ms {
            0 => "-".to_owned(),
            ended if ended <= now_unix_ms => "ended".to_owned(),
            until => clock_human(until),
        };
        table.row([
            user.name.clone(),
            if user.is_local { "this machine" } else { "other machines" }.to_owned(),
            role_word(user).to_owned(),
            queues,
            runs_as.to_owned(),
            until,
            if user.is_configured { "scheduler.toml" } else { "users add" }.to_owned(),
        ]);
    }
    table.render_as(look)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ada() -> User {
        User {
            name: "ada".to_owned(),
            role: Role::User.into(),
            queues: vec!["team-a".to_owned()],
            runs_as: "ada".to_owned(),
            ..User::default()
        }
    }

    #[test]
    fn users_are_a_table() {
        let local = User { name: "bob".to_owned(), is_local: true, is_configured: true, ..User::default() };
        let mut viewer = User { name: "eve".to_owned(), expires_unix_ms: 5, ..User::default() };
        viewer.set_role(Role::Viewer);
        assert_eq!(
            text(&[local, ada(), viewer], Look::PLAIN, 5),
            "USER  FROM            ROLE    QUEUES  RUNS AS  CERTIFICATE UNTIL  SET BY\n\
             bob   this machine    user    all     itself   -                  scheduler.toml\n\
             ada   other machines  user    team-a  ada      -                  users add\n\
             eve   other machines  viewer  -       -        ended              users add\n"
        );
        assert!(text(&[], Look::PLAIN, 0).contains("aliquot users add"));
    }

    #[test]
    fn only_what_is_said_changes() {
        let rights = || UserRights { role: None, queue: Vec::new(), runs_as: None };
        let set = |rights: UserRights, all_queues| changed(User { expires_unix_ms: 7, ..ada() }, &rights, all_queues);
        assert_eq!(set(rights(), false), ada());
        assert_eq!(set(rights(), true), User { queues: Vec::new(), ..ada() });
        let viewer = set(UserRights { role: Some(RoleWord::Viewer), ..rights() }, false);
        assert_eq!((viewer.role(), viewer.queues), (Role::Viewer, Vec::new()));
        // The scheduler refuses this; nothing that is said is left out.
        let with_queue = UserRights { role: Some(RoleWord::Viewer), queue: vec!["b".parse().unwrap()], ..rights() };
        assert_eq!(set(with_queue, false).queues, ["b"]);
        let other = UserRights { queue: vec!["b".parse().unwrap()], runs_as: Some("bob".parse().unwrap()), ..rights() };
        assert_eq!(set(other, false), User { queues: vec!["b".to_owned()], runs_as: "bob".to_owned(), ..ada() });
    }

    #[test]
    fn whoever_adds_a_user_is_told_what_is_missing() {
        let file = Some(Path::new("ada-credentials.toml"));
        assert!(!advice(&ada(), file, false).contains("--as"));
        assert!(advice(&User { runs_as: String::new(), ..ada() }, file, false).contains("aliquot users set ada --as"));
        assert!(advice(&ada(), file, true).contains("aliquot:users"));
    }
}
