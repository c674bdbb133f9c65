//! Connections of users to ports of jobs.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::thread;

use aliquot_harness::{Process, artifacts, wait};
use aliquot_proto::scheduler::v1::{JobSpec, JobState};

use crate::Cluster;

/// A server that answers each connection with the received bytes in upper case, after the last byte has come. If the
/// bytes begin with '!', it ends its side at once, and says how many bytes it has received.
const SERVER: &str = "
import socket, threading
listener = socket.create_server(('127.0.0.1', 0))
print(listener.getsockname()[1], flush=True)
def serve(connection):
    data = connection.recv(1)
    is_early = data == b'!'
    if is_early:
        connection.sendall(b'bye')
        connection.shutdown(socket.SHUT_WR)
    while piece := connection.recv(65536):
        data += piece
    if is_early:
        print('got', len(data), flush=True)
    else:
        connection.sendall(data.upper())
    connection.close()
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],)).start()
";

/// The local ports that the program prints, one for each named port.
fn local_ports(process: &Process, count: usize) -> Option<Vec<u16>> {
    let output = process.output();
    let port = |line: &str| line.split_once(" -> ")?.0.strip_prefix("127.0.0.1:")?.parse().ok();
    let ports: Vec<u16> = output.lines().filter_map(port).collect();
    (ports.len() == count).then_some(ports)
}

#[test]
fn many_connections_carry_data_both_ways_to_their_ends() {
    let cluster = Cluster::start(1, "");
    let command = ["python3", "-u", "-c", SERVER].map(str::to_owned).into();
    let id = cluster.submit(JobSpec { command, work_dir: "/".into(), ..JobSpec::default() });
    cluster.wait_for(id, JobState::Running);
    let remote = wait::until("the job listens", || {
        let log = cluster.client().log(id, 0).ok()?;
        log.strip_suffix('\n').and_then(|port| port.parse::<u16>().ok())
    });
    let mut command = Command::new(artifacts::cli());
    // No server listens on the second port.
    command.args(["port-forward", &id.to_string(), &format!(":{remote}"), ":1"]);
    let mut process = Process::start(command.env("ALIQUOT_SCHEDULER", cluster.scheduler.socket()));
    let ports = wait::until("it listens", || {
        assert!(!process.has_ended(), "{}", process.errors());
        local_ports(&process, 2)
    });

    // This connection is not read, and gets more bytes than all buffers on the way hold: it does not block the others.
    let mut stuck = TcpStream::connect(("127.0.0.1", ports[0])).expect("it listens");
    stuck.write_all(&vec![b'x'; 4 << 20]).expect("it is taken");
    stuck.shutdown(Shutdown::Write).expect("it can be half closed");
    thread::scope(|scope| {
        for number in 0..4_u8 {
            let port = ports[0];
            scope.spawn(move || {
                let mut connection = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
                let sent = vec![b'a' + number; 10 << 20];
                let mut received = Vec::new();
                connection.write_all(&sent).expect("it is taken");
                connection.shutdown(Shutdown::Write).expect("it can be half closed");
                connection.read_to_end(&mut received).expect("the answer comes");
                assert!(received == vec![b'A' + number; 10 << 20], "{} bytes", received.len());
            });
        }
    });
    let mut received = Vec::new();
    stuck.read_to_end(&mut received).expect("it was not lost");
    assert_eq!(received.len(), 4 << 20);

    // The job has sent everything before the user has.
    let mut early = TcpStream::connect(("127.0.0.1", ports[0])).expect("it listens");
    let mut received = Vec::new();
    early.write_all(b"!").expect("it is taken");
    early.read_to_end(&mut received).expect("the answer comes");
    assert_eq!(received, b"bye");
    early.write_all(&vec![b'x'; 4 << 20]).expect("it is taken");
    drop(early);
    let said = format!("got {}\n", (4 << 20) + 1);
    wait::until_true("all of it came", || cluster.client().log(id, 0).is_ok_and(|log| log.ends_with(&said)));

    let mut refused = TcpStream::connect(("127.0.0.1", ports[1])).expect("it listens here");
    assert!(refused.read(&mut [0]).is_err(), "the connection is reset");
    wait::until_true("it is said why", || process.errors().contains("nothing listens at port 1"));

    // Open connections and the program end when the job ends.
    let mut open = TcpStream::connect(("127.0.0.1", ports[0])).expect("it listens");
    open.write_all(b"begun").expect("it is taken");
    cluster.client().cancel(id).expect("it can be cancelled");
    let ended = process.wait();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(ended.stderr.contains(&format!("job {id} has ended")), "{ended:?}");
    assert!(matches!(open.read(&mut [0]), Ok(0) | Err(_)));
}
