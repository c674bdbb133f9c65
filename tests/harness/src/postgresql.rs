//! A PostgreSQL server for a test process.

use std::fs::{self, Permissions};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

use crate::process::run;
use crate::wait;

/// The directory in which Debian's package installs the server's programs, with a subdirectory for each version.
const VERSIONS: &str = "/usr/lib/postgresql";
/// The server's superuser, which needs no password.
const USER: &str = "aliquot";
/// Ends the server and removes its directory when the test process has ended, however it ended.
const KEEPER: &str = r#"dir=$1; shift; "$@" >"$dir/log" 2>&1 & read -r _; kill -QUIT $!; wait; rm -rf "$dir""#;

/// A PostgreSQL server with a socket of its own. It ends when this is dropped, or with the test process.
pub struct PostgreSql {
    dir: PathBuf,
    programs: PathBuf,
    keeper: Child,
    /// The keeper waits until this is closed.
    lifeline: Option<ChildStdin>,
    /// The address and the port on which it listens in addition to its socket.
    listens: Option<(String, u16)>,
}

/// A port that nobody listens on. It is none of those that the kernel gives out itself (from 32768), so nobody gets it
/// by chance before the server does. Processes begin their search at different ports.
fn free_port() -> u16 {
    const FIRST: u32 = 10_000;
    const PORTS: u32 = 20_000;
    let ports = (0..PORTS).map(|number| FIRST + (std::process::id() + number) % PORTS);
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    ports.filter_map(|port| u16::try_from(port).ok()).find(is_free).expect("a free port")
}

impl PostgreSql {
    /// The server of this process. It is started when it is first asked for.
    #[must_use]
    pub fn shared() -> &'static PostgreSql {
        static SERVER: OnceLock<PostgreSql> = OnceLock::new();
        SERVER.get_or_init(PostgreSql::start)
    }

    /// A server that listens on its socket alone.
    #[must_use]
    pub fn start() -> PostgreSql {
        PostgreSql::with(None, "listen_addresses = ''\n", &[])
    }

    /// A server that also listens on 127.0.0.1, with TLS, and has this certificate and key, in PEM.
    #[must_use]
    pub fn with_tls(certificate: &str, key: &str) -> PostgreSql {
        let port = free_port();
        let settings = format!(
            "listen_addresses = '127.0.0.1'\nport = {port}\nssl = on\nssl_cert_file = 'server.crt'\nssl_key_file = \
             'server.key'\n"
        );
        let files = [("server.crt", certificate), ("server.key", key)];
        PostgreSql::with(Some(("127.0.0.1".to_owned(), port)), &settings, &files)
    }

    fn with(listens: Option<(String, u16)>, settings: &str, files: &[(&str, &str)]) -> PostgreSql {
        let programs = programs();
        let user = user();
        let dir = TempDir::with_prefix("aliquot-postgresql-").expect("a temporary directory").keep();
        let own = |path: &Path| {
            if let Some((uid, gid)) = user {
                chown(path, Some(uid), Some(gid)).expect("it can be given to the server's user");
            }
        };
        own(&dir);
        let data = dir.join("data");
        let by_user = |command: &mut Command| {
            if let Some((uid, gid)) = user {
                command.gid(gid).uid(uid);
            }
            command.current_dir("/");
        };
        let mut initdb = Command::new(programs.join("initdb"));
        initdb.args(["--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C", "--username", USER, "--pgdata"]);
        initdb.arg(&data);
        by_user(&mut initdb);
        let _ = run(&mut initdb).success();
        for (name, text) in files {
            let path = data.join(name);
            fs::write(&path, text).expect("a file of the server");
            fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("its permissions");
            own(&path);
        }
        // The power does not fail during a test, so syncs are not needed.
        let settings = format!(
            "{settings}unix_socket_directories = '{}'\nfsync = off\nfull_page_writes = off\nautovacuum = off\n\
             shared_buffers = 16MB\n",
            dir.display()
        );
        let file = fs::OpenOptions::new().append(true).open(data.join("postgresql.conf"));
        file.and_then(|mut file| file.write_all(settings.as_bytes())).expect("the server's settings");
        let mut command = Command::new("/bin/sh");
        command.args(["-c", KEEPER, "sh"]).arg(&dir).arg(programs.join("postgres")).arg("-D").arg(&data);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        by_user(&mut command);
        let mut keeper = command.spawn().expect("a shell");
        let lifeline = keeper.stdin.take();
        let server = PostgreSql { dir, programs, keeper, lifeline, listens };
        wait::until_true("PostgreSQL answers", || {
            let mut ready = server.client("pg_isready");
            ready.args(["--quiet", "--dbname", "postgres"]).status().is_ok_and(|status| status.success())
        });
        server
    }

    /// The URL of a new, empty database.
    #[must_use]
    pub fn database(&self) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("test{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.sql(&self.url("postgres"), &format!("CREATE DATABASE {name}"));
        self.url(&name)
    }

    /// Runs statements in a database, and returns their output.
    #[track_caller]
    pub fn sql(&self, url: &str, statements: &str) -> String {
        let mut psql = self.client("psql");
        psql.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "-v", "ON_ERROR_STOP=1"]);
        run(psql.args(["--dbname", url, "--command", statements])).success().stdout.trim().to_owned()
    }

    /// Copies a database into a new one through a dump, as a restored backup would. Answers the copy's URL.
    #[must_use]
    pub fn restored(&self, url: &str) -> String {
        let copy = self.database();
        let dump = self.dir.join("dump");
        fs::write(&dump, run(self.client("pg_dump").args(["--dbname", url])).success().stdout).expect("the dump");
        let mut psql = self.client("psql");
        psql.args(["--no-psqlrc", "--quiet", "-v", "ON_ERROR_STOP=1", "--dbname", &copy, "--file"]).arg(&dump);
        let _ = run(&mut psql).success();
        copy
    }

    /// The URL of a database for connections over the network, with TLS.
    #[must_use]
    pub fn over_network(&self, url: &str) -> String {
        let (host, port) = self.listens.as_ref().expect("it listens on the network");
        format!("postgresql://{USER}@{host}:{port}/{}", url.rsplit('/').next().unwrap_or_default())
    }

    fn url(&self, database: &str) -> String {
        let port = self.listens.as_ref().map(|(_, port)| format!(":{port}")).unwrap_or_default();
        format!("postgresql://{USER}@{}{port}/{database}", self.dir.display().to_string().replace('/', "%2F"))
    }

    fn client(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.env("PGHOST", &self.dir).env("PGUSER", USER);
        if let Some((_, port)) = &self.listens {
            command.env("PGPORT", port.to_string());
        }
        command
    }
}

impl Drop for PostgreSql {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        let _ = self.keeper.wait();
    }
}

/// The directory with the programs of the newest version.
fn programs() -> PathBuf {
    let versions = fs::read_dir(VERSIONS).into_iter().flatten().flatten();
    let number = |name: &str| name.split('.').next().and_then(|number| number.parse::<u32>().ok());
    let newest = versions
        .filter(|version| version.path().join("bin/initdb").is_file())
        .max_by_key(|version| version.file_name().to_str().and_then(number));
    let newest = newest.unwrap_or_else(|| panic!("PostgreSQL is not installed: apt-get install postgresql"));
    newest.path().join("bin")
}

/// The user and the group that run the server instead of root, because it refuses to run as root; `None`: the test does
/// not run as root.
fn user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").expect("the list of users");
    let ids = |name: &str| {
        let fields = users.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| fields[0] == name)?;
        Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?))
    };
    // The server's package makes the user `postgres`.
    Some(ids("postgres").or_else(|| ids("nobody")).expect("an ordinary user"))
}
