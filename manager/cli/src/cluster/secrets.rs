//! `aliquot secrets`: values that jobs get as files that only their user can read.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use aliquot_proto::scheduler::v1::{ListSecretsRequest, RemoveSecretRequest, Secret, SetSecretRequest};
use aliquot_proto::secret::SECRET_BYTES_MAX;
use serde_json::{Value, json};

use super::{Client, Text, connect_to_running, failed, moment_human, now_unix_ms};
use crate::args::{SecretRemoveArgs, SecretSetArgs, SecretsArgs, SecretsCommand};
use crate::error::{Failure, Result, exit};
use crate::output::{self, Look};
use crate::quantity::bytes_human;
use crate::table::{Align, Table, printable};

/// Prints the secrets, or changes one.
pub(crate) async fn secrets(socket: Option<&Path>, args: &SecretsArgs) -> Result<()> {
    // A problem with the file is reported before the scheduler is asked.
    let value = match &args.command {
        Some(SecretsCommand::Set(args)) => read(&args.from_file)?,
        _ => Vec::new(),
    };
    let mut client = connect_to_running(socket).await?;
    match &args.command {
        None => list(&mut client, args.json).await,
        Some(SecretsCommand::List(args)) => list(&mut client, args.json).await,
        Some(SecretsCommand::Set(args)) => set(&mut client, args, value).await,
        Some(SecretsCommand::Remove(args)) => remove(&mut client, args).await,
    }
}

async fn list(client: &mut Client, as_json: bool) -> Result<()> {
    let secrets = client.list_secrets(ListSecretsRequest {}).await.map_err(failed)?.into_inner().secrets;
    if as_json {
        return output::print_json(&json!({ "secrets": secrets.iter().map(of_secret).collect::<Vec<_>>() }));
    }
    output::print(&text(&secrets, Look::of_stdout(), now_unix_ms()))
}

async fn set(client: &mut Client, args: &SecretSetArgs, value: Vec<u8>) -> Result<()> {
    let request = SetSecretRequest { name: args.name.as_str().to_owned(), queue: queue(args.queue.as_ref()), value };
    let secret = client.set_secret(request).await.map_err(failed)?.into_inner();
    if args.json {
        return output::print_json(&of_secret(&secret));
    }
    output::print(&format!("{}\n", printable(&secret.name)))
}

async fn remove(client: &mut Client, args: &SecretRemoveArgs) -> Result<()> {
    let name = args.name.as_str().to_owned();
    let request = RemoveSecretRequest { name: name.clone(), queue: queue(args.queue.as_ref()) };
    client.remove_secret(request).await.map_err(failed)?;
    if args.json {
        return output::print_json(&json!({ "removed": name }));
    }
    Ok(())
}

fn queue(given: Option<&Text>) -> String {
    given.map(|queue| queue.as_str().to_owned()).unwrap_or_default()
}

/// The bytes of a file, or of standard input for `-`.
fn read(file: &Path) -> Result<Vec<u8>> {
    let (name, source): (String, io::Result<Box<dyn Read>>) = match file == Path::new("-") {
        true => ("standard input".to_owned(), Ok(Box::new(io::stdin()))),
        false => (file.display().to_string(), File::open(file).map(|file| Box::new(file) as Box<dyn Read>)),
    };
    let mut value = Vec::new();
    // One byte more than the maximum, so that a longer value is noticed.
    let read = source.and_then(|source| source.take(SECRET_BYTES_MAX as u64 + 1).read_to_end(&mut value));
    read.map_err(|error| Failure::new(format!("cannot read {name}: {error}")).exit(exit::USAGE))?;
    if value.len() > SECRET_BYTES_MAX {
        return Err(Failure::new(format!(
            "{name} has more than {SECRET_BYTES_MAX} bytes, the most that a secret can have"
        ))
        .hint("put large files where jobs can read them, and keep only their key or password as a secret")
        .exit(exit::USAGE));
    }
    Ok(value)
}

fn of_secret(secret: &Secret) -> Value {
    json!({
        "name": secret.name,
        "queue": secret.queue,
        "user": secret.user,
        "is_remote": secret.is_remote,
        "bytes": secret.bytes,
        "set_unix_ms": secret.set_unix_ms,
        "set_by": secret.set_by,
    })
}

fn text(secrets: &[Secret], look: Look, now_unix_ms: u64) -> String {
    if secrets.is_empty() {
        return "No secrets. Store one: aliquot secrets set NAME --from-file FILE\n".to_owned();
    }
    let mut table = Table::new([
        ("SECRET", Align::Left),
        ("OF", Align::Left),
        ("SIZE", Align::Right),
        ("SET", Align::Left),
        ("BY", Align::Left),
    ]);
    for secret in secrets {
        let of = match (secret.queue.as_str(), secret.is_remote) {
            ("", false) => format!("user {}", secret.user),
            ("", true) => format!("user {}, elsewhere", secret.user),
            (queue, _) => format!("queue {queue}"),
        };
        table.row([
            secret.name.clone(),
            of,
            bytes_human(secret.bytes.into()),
            moment_human(secret.set_unix_ms, now_unix_ms),
            secret.set_by.clone(),
        ]);
    }
    table.render_as(look)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_a_table_without_values() {
        let of_user = Secret {
            name: "hf-token".to_owned(),
            user: "ada".to_owned(),
            is_remote: true,
            bytes: 37,
            set_unix_ms: 1_000_000,
            set_by: "ada".to_owned(),
            ..Secret::default()
        };
        let of_queue = Secret { name: "registry".to_owned(), queue: "team-a".to_owned(), ..Secret::default() };
        assert_eq!(
            text(&[of_user, of_queue], Look::PLAIN, 1_060_000),
            "SECRET    OF                   SIZE  SET                            BY\n\
             hf-token  user ada, elsewhere  37 B  1970-01-01 00:16:40Z (1m ago)  ada\n\
             registry  queue team-a          0 B  -\n"
        );
        assert!(text(&[], Look::PLAIN, 0).contains("aliquot secrets set"));
    }

    #[test]
    fn a_file_that_is_too_long_is_named_with_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        std::fs::write(&file, vec![b'x'; SECRET_BYTES_MAX]).unwrap();
        assert_eq!(read(&file).unwrap().len(), SECRET_BYTES_MAX);
        std::fs::write(&file, vec![b'x'; SECRET_BYTES_MAX + 1]).unwrap();
        let refused = read(&file).unwrap_err().to_string();
        assert!(refused.contains("token has more than 65536 bytes"), "{refused}");
        assert!(read(&dir.path().join("none")).unwrap_err().to_string().contains("cannot read"));
    }
}
