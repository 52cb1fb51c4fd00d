//! S3 servers: `s3s-fs` in this process, and moto, which others wrote in another language.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bindery_pool::archive::{Archive, ArchiveOptions, Credentials, OpenError, Patience, Secret};
use bindery_testkit::guest::Kit;
use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use tempfile::TempDir;

use super::background::Background;
use super::proxy::Proxy;

pub(crate) const BUCKET: &str = "bucket";
pub(crate) const SECRET: &str = "do-not-show-this";

/// A store with a proxy before it.
pub(crate) struct Bench {
    pub(crate) proxy: Proxy,
    direct: SocketAddr,
    /// Where `s3s-fs` keeps the bucket's keys, as files.
    pub(crate) files: Option<PathBuf>,
    _server: Server,
}

enum Server {
    Own { _background: Background, _directory: TempDir },
    Moto { _process: Process },
}

impl Bench {
    pub(crate) fn s3s() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let files = directory.path().join(BUCKET);
        std::fs::create_dir(&files).unwrap();
        let mut builder = S3ServiceBuilder::new(s3s_fs::FileSystem::new(directory.path()).unwrap());
        builder.set_auth(SimpleAuth::from_single("key", SECRET));
        let service = builder.build();
        let (background, direct) = Background::serve(move |stream| {
            let service = service.clone();
            async move {
                let connection = hyper::server::conn::http1::Builder::new();
                let _ = connection.serve_connection(TokioIo::new(stream), service).await;
            }
        });
        let server = Server::Own { _background: background, _directory: directory };
        Self { proxy: Proxy::before(direct), direct, files: Some(files), _server: server }
    }

    /// None where set-up has not fetched it.
    pub(crate) fn moto() -> Option<Self> {
        let packages = Kit::of_checkout().moto()?;
        let (process, direct) = Process::start(&packages);
        make_bucket(direct);
        let server = Server::Moto { _process: process };
        Some(Self { proxy: Proxy::before(direct), direct, files: None, _server: server })
    }

    /// ArchiveOptions of a host of a name.
    pub(crate) fn options(&self, writer: &str) -> ArchiveOptions {
        options(&format!("http://{}", self.proxy.address), writer)
    }

    /// A host's archive, through the proxy.
    pub(crate) fn archive(&self, writer: &str) -> Archive {
        self.open(self.options(writer)).unwrap()
    }

    pub(crate) fn open(&self, options: ArchiveOptions) -> Result<Archive, OpenError> {
        Archive::open(&format!("s3://{BUCKET}/some/prefix"), options)
    }

    /// A host's archive, past the proxy.
    pub(crate) fn direct(&self, writer: &str) -> Archive {
        self.open(options(&format!("http://{}", self.direct), writer)).unwrap()
    }
}

/// Small parts, and little patience.
pub(crate) fn options(endpoint: &str, writer: &str) -> ArchiveOptions {
    ArchiveOptions {
        endpoint: Some(endpoint.into()),
        region: Some("us-east-1".into()),
        credentials: Some(Credentials {
            access_key_id: "key".into(),
            secret_access_key: Secret(SECRET.into()),
            session_token: None,
        }),
        patience: Patience {
            request: Duration::from_secs(10),
            deadline: Duration::from_secs(20),
            opening: Duration::from_secs(20),
            first_delay: Duration::from_millis(1),
            longest_delay: Duration::from_millis(20),
        },
        part_bytes: 16 << 10,
        parts_at_once: 3,
        read_back: true,
        writer: writer.into(),
    }
}

/// moto's server, ended when dropped.
struct Process(Child);

impl Process {
    fn start(packages: &Path) -> (Self, SocketAddr) {
        let mut child = Command::new("python3")
            .args(["-u", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"])
            .env("PYTHONPATH", packages)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let errors = child.stderr.take().unwrap();
        let process = Self(child);
        let (told, lines) = mpsc::channel();
        // Reads to the end, so that the server never waits for somebody to read.
        std::thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                let _ = told.send(line);
            }
        });
        // Python reads all of moto first, on a machine that does much else.
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = lines.recv_timeout(left).expect("moto says where it listens");
            if let Some((_, address)) = line.split_once("Running on http://") {
                return (process, address.trim().parse().unwrap());
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn make_bucket(server: SocketAddr) {
    let mut stream = TcpStream::connect(server).unwrap();
    let request = format!("PUT /{BUCKET} HTTP/1.0\r\nHost: {server}\r\nContent-Length: 0\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    assert!(answer.contains(" 200 "), "{answer}");
}
