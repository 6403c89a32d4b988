//! The command line: what there is, what it accepts, and what it means together.

use std::env;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use kaas_coord::cluster::heartbeat::tls::TlsFiles;
use kaas_coord::kubernetes::candidate::broker_of_pod;
use kaas_net::listener::{BoundListener, NamedAddress};
use kaas_proto::config::Effect;
use kaas_proto::config::broker::{BROKER_CONFIGS, BrokerConfig, Origin};
use kaas_proto::roots::Roots;
use kaas_proto::types::BrokerId;
use kaas_proto::view::ListenerAddress;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;

use crate::inspect::Inspect;

/// Set by the pod's template; the namespace, unless the option says another one.
const POD_NAMESPACE: &str = "MY_POD_NAMESPACE";
/// Set by the pod's template (downward API); tells a pod's broker from one that somebody runs by hand.
const POD_NAME: &str = "MY_POD_NAME";

/// A broker that speaks Kafka's protocol and keeps its data on a shared volume.
///
/// Without --data-dir everything is kept in memory and lost at the end (local-dev mode). Each option can also be given
/// by the environment variable that is named with it; there, lists are separated by commas.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "kaas",
    version,
    after_long_help = settings_help(),
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true
)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Option<Command>,

    /// Where the data lies. The file system must take direct I/O; NFS must be 4.1 or newer.
    #[arg(long, value_name = "DIR", env = "KAAS_DATA_DIR")]
    pub(crate) data_dir: Option<PathBuf>,

    /// Where the cluster's own state lies, on a volume of its own: committed offsets, the assignment, producer ids. A data volume that
    /// is full or slow then does not hold up commits. The same for all brokers of a data directory; DIR stands for its
    /// __cluster, whose content has to be moved there. Default: __cluster in --data-dir.
    #[arg(long, value_name = "DIR", env = "KAAS_CLUSTER_DIR")]
    pub(crate) cluster_dir: Option<PathBuf>,

    /// Where to listen for Kafka clients; repeatable, each with a name of its own (PLAINTEXT if none is given). Port 0
    /// takes a free port and prints it. An IPv6 address stands in brackets: [::1]:9092.
    #[arg(
        long,
        value_name = "[NAME=]HOST:PORT",
        env = "KAAS_LISTEN",
        value_delimiter = ',',
        default_value = "127.0.0.1:9092"
    )]
    pub(crate) listen: Vec<NamedAddress>,

    /// What clients of the listener of that name are told to connect to; repeatable. Without it: the address that the
    /// client connected to.
    #[arg(long, value_name = "[NAME=]HOST:PORT", env = "KAAS_ADVERTISE", value_delimiter = ',')]
    pub(crate) advertise: Vec<NamedAddress>,

    /// Where /metrics, /healthz and /readyz are served.
    #[arg(
        long,
        value_name = "HOST:PORT",
        env = "KAAS_ADMIN_LISTEN",
        default_value = "127.0.0.1:8080",
        value_parser = socket_address
    )]
    pub(crate) admin_listen: SocketAddr,

    /// How many shards to run, each on a CPU of its own. Default: the CPUs that the process may use, less one for the
    /// control thread when there are more than two.
    #[arg(long, value_name = "NUMBER", env = "KAAS_SHARDS", value_parser = shards, allow_negative_numbers = true)]
    pub(crate) shards: Option<u16>,

    /// The id of this broker, from 0. Default: 1; in a pod of a StatefulSet its ordinal, and nothing else.
    #[arg(long, value_name = "NUMBER", env = "KAAS_BROKER_ID", value_parser = broker_id, allow_negative_numbers = true)]
    pub(crate) broker_id: Option<i32>,

    /// In a cluster: where to listen for the heartbeats of the other brokers. Port 0 takes a free port.
    #[arg(
        long,
        value_name = "HOST:PORT",
        env = "KAAS_HEARTBEAT_LISTEN",
        default_value = "0.0.0.0:9094",
        value_parser = socket_address
    )]
    pub(crate) heartbeat_listen: SocketAddr,

    /// In a cluster: the certificate (PEM) that this broker shows to the others, for their heartbeats over mutual TLS. It must be good
    /// for servers and for clients, and hold the name of this broker's pod as the headless service has it, or the address
    /// of --heartbeat-listen. Files are read again every 10 seconds.
    #[arg(long, value_name = "FILE", env = "KAAS_HEARTBEAT_TLS_CERTIFICATE")]
    heartbeat_tls_certificate: Option<PathBuf>,

    /// In a cluster: the key (PEM) of that certificate.
    #[arg(long, value_name = "FILE", env = "KAAS_HEARTBEAT_TLS_KEY")]
    heartbeat_tls_key: Option<PathBuf>,

    /// In a cluster: the certificates (PEM) of the authority that has signed those of all brokers, and of nobody else: who has
    /// one is let in.
    #[arg(long, value_name = "FILE", env = "KAAS_HEARTBEAT_TLS_CA")]
    heartbeat_tls_ca: Option<PathBuf>,

    /// In a cluster: where the other brokers reach this one's heartbeat port, when that is not where it listens, as behind a
    /// proxy or a service of its own; certificates have to hold it. Default: in a pod its name in the headless service, else
    /// the address listened on.
    #[arg(long, value_name = "HOST:PORT", env = "KAAS_HEARTBEAT_ADVERTISE", value_parser = heartbeat_address)]
    pub(crate) heartbeat_advertise: Option<String>,

    /// In a pod: the headless service of the brokers' pods. Through it they find each other.
    #[arg(long, value_name = "NAME", env = "KAAS_KUBERNETES_SERVICE", default_value = "kaas-headless")]
    pub(crate) kubernetes_service: String,

    /// In a pod: the namespace of the Lease and of the KafkaTopic objects. Default: MY_POD_NAMESPACE, else that of
    /// the service account.
    #[arg(long, value_name = "NAME", env = "KAAS_KUBERNETES_NAMESPACE")]
    pub(crate) kubernetes_namespace: Option<String>,

    /// Runs a cluster on one machine without Kubernetes, for tests and for trying it: all its brokers are given the same
    /// DIR, on a local disk, and elect their controller and keep their list of topics by files in it.
    #[arg(long, value_name = "DIR", env = "KAAS_CLUSTER_STAND_IN")]
    pub(crate) cluster_stand_in: Option<PathBuf>,

    /// How much is logged: off, error, warn, info, debug or trace, also by module: info,kaas_net=debug.
    #[arg(long, value_name = "LEVEL", env = "KAAS_LOG_LEVEL", default_value = "info", value_parser = log_level)]
    pub(crate) log_level: Targets,

    /// Sets a broker configuration by Kafka's name; repeatable. By environment: KAAS_SET=NAME=VALUE,NAME=VALUE. All of
    /// them are listed below (kaas --help).
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) set: Vec<Setting>,

    /// Takes a data directory on NFS 3 or 4.0. There a write that was sent twice can land after a newer one, so an
    /// acknowledged record can be lost when the server or the network fails.
    #[arg(long, env = "KAAS_ACCEPT_NFS3", value_parser = yes_or_no)]
    pub(crate) accept_nfs3: bool,
}

/// What else than running a broker the binary does.
#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Prints a file of the data directory and its first bad byte, if it has one; changes nothing.
    Inspect {
        #[command(subcommand)]
        what: Inspect,
    },
}

/// What the process was started for.
pub(crate) enum Asked {
    Broker(Box<Checked>),
    Inspect(Inspect),
}

/// `--set NAME=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    name: String,
    value: String,
}

/// A text that is no setting.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("accepted is NAME=VALUE, for example num.partitions=4; kaas --help lists the names")]
pub(crate) struct InvalidSetting;

impl FromStr for Setting {
    type Err = InvalidSetting;

    fn from_str(text: &str) -> Result<Self, InvalidSetting> {
        let (name, value) = text.split_once('=').ok_or(InvalidSetting)?;
        Ok(Self { name: name.trim().to_owned(), value: value.trim().to_owned() })
    }
}

/// What the options mean together.
#[derive(Clone, Debug)]
pub(crate) struct Checked {
    pub(crate) mode: Mode,
    pub(crate) listen: Vec<NamedAddress>,
    /// One per listener, for clients.
    pub(crate) advertised: Vec<ListenerAddress>,
    pub(crate) admin_listen: SocketAddr,
    pub(crate) shards: Option<u16>,
    pub(crate) broker: BrokerId,
    pub(crate) heartbeat_listen: SocketAddr,
    pub(crate) heartbeat_tls: Option<TlsFiles>,
    pub(crate) heartbeat_advertise: Option<String>,
    pub(crate) log_level: Targets,
    pub(crate) config: BrokerConfig,
    pub(crate) accept_nfs3: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    LocalDev,
    Standalone(Roots),
    Cluster { roots: Roots, outside: Outside },
}

/// What a cluster has its election and its topics from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outside {
    /// A directory that stands in for Kubernetes.
    StandIn(PathBuf),
    /// The pod, the headless service, the namespace.
    Kubernetes { pod: String, service: String, namespace: Option<String> },
}

impl Mode {
    /// Where files lie; `None`: in memory.
    pub(crate) fn roots(&self) -> Option<&Roots> {
        match self {
            Self::LocalDev => None,
            Self::Standalone(roots) | Self::Cluster { roots, .. } => Some(roots),
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::LocalDev => "local-dev",
            Self::Standalone(_) => "standalone",
            Self::Cluster { .. } => "cluster",
        }
    }
}

/// Options that are fine by themselves, but not together or not here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OptionError {
    #[error(
        "{POD_NAME} is '{0}', which does not end with -NUMBER as the pods of a StatefulSet do: the others would not know \
         which broker that is; run kaas as a StatefulSet"
    )]
    NoOrdinal(String),
    #[error(
        "--broker-id {id} in the pod {pod}: the others, and the Lease, take that pod for broker {ordinal}; leave out --broker-id \
         (KAAS_BROKER_ID), or give {ordinal}"
    )]
    NotTheOrdinal { pod: String, id: i32, ordinal: i32 },
    #[error("a broker of a cluster needs the volume that all of them share: give it with --data-dir")]
    NoSharedVolume,
    #[error(
        "--cluster-dir (KAAS_CLUSTER_DIR) without --data-dir: without a data directory everything is kept in memory; give one, or leave \
         out --cluster-dir"
    )]
    NoDataDirectory,
    #[error(
        "{} is missing: mutual TLS needs --heartbeat-tls-certificate, --heartbeat-tls-key and --heartbeat-tls-ca", .0.join(" and ")
    )]
    IncompleteTls(Vec<&'static str>),
    #[error("--advertise {0} has no listener: its name must be one of those of --listen ({1})")]
    NoSuchListener(NamedAddress, String),
    #[error("--advertise {0} is given twice for one listener")]
    AdvertisedTwice(NamedAddress),
    #[error(
        "--advertise {0} is nothing that a client can connect to: accepted is the address of this machine and a port"
    )]
    NotReachable(NamedAddress),
    #[error("--set {0}")]
    Setting(#[from] kaas_proto::config::ConfigError),
    #[error("--set {name} is given twice, with '{first}' and with '{second}'; leave one of them out")]
    SetTwice { name: String, first: String, second: String },
    #[error("{SETTINGS} holds '{0}': {InvalidSetting}")]
    SettingsVariable(String),
}

/// Of a broker that is alone.
const DEFAULT_BROKER_ID: i32 = 1;

/// `--set` by environment. A part without `=` continues the value before it, which is a list.
const SETTINGS: &str = "KAAS_SET";

impl Options {
    /// Reads the command line and the environment. Whatever is wrong ends the process with a message that names it.
    pub(crate) fn from_process() -> Asked {
        let mut options = Self::try_parse().unwrap_or_else(|error| {
            let arguments: Vec<String> = env::args_os().map(|text| text.to_string_lossy().into_owned()).collect();
            match value_of_variable(&error, &arguments) {
                Some(message) => Self::command().error(ErrorKind::ValueValidation, message).exit(),
                None => error.exit(),
            }
        });
        if let Some(Command::Inspect { what }) = options.command.take() {
            return Asked::Inspect(what);
        }
        let checked = options.check(|name| env::var(name).ok()).unwrap_or_else(|error| {
            Self::command().error(ErrorKind::ValueValidation, error).exit();
        });
        Asked::Broker(Box::new(checked))
    }

    fn check(self, variable: impl Fn(&str) -> Option<String>) -> Result<Checked, OptionError> {
        let pod = variable(POD_NAME).filter(|pod| !pod.is_empty());
        let mut broker_id = self.broker_id;
        let outside = match (self.cluster_stand_in, pod) {
            (Some(directory), _) => Some(Outside::StandIn(directory)),
            (None, Some(pod)) => {
                broker_id = match (broker_id, broker_of_pod(&pod)) {
                    (_, None) => return Err(OptionError::NoOrdinal(pod)),
                    (Some(id), Some(BrokerId(ordinal))) if id != ordinal => {
                        return Err(OptionError::NotTheOrdinal { pod, id, ordinal });
                    }
                    (_, Some(BrokerId(ordinal))) => Some(ordinal),
                };
                let given = self.kubernetes_namespace.filter(|namespace| !namespace.is_empty());
                let namespace = given.or_else(|| variable(POD_NAMESPACE)).filter(|namespace| !namespace.is_empty());
                Some(Outside::Kubernetes { pod, service: self.kubernetes_service, namespace })
            }
            (None, None) => None,
        };
        let broker_id = broker_id.unwrap_or(DEFAULT_BROKER_ID);
        let advertised = advertised(&self.listen, &self.advertise)?;
        let mut settings = settings_of_variable(&variable(SETTINGS).unwrap_or_default())?;
        refuse_contradictions(&self.set)?;
        settings.extend(self.set);
        let mut config =
            BrokerConfig::resolve(settings.iter().map(|setting| (setting.name.as_str(), setting.value.as_str())))?
                .with_option("broker.id", broker_id.to_string())
                .with_option("node.id", broker_id.to_string());
        if !self.advertise.is_empty() {
            config = config.with_option("advertised.listeners", listener_urls(&self.advertise));
        }
        if let Some(directory) = &self.data_dir {
            config = config.with_option("log.dirs", directory.display().to_string());
        }
        let heartbeat_tls = tls_files(self.heartbeat_tls_certificate, self.heartbeat_tls_key, self.heartbeat_tls_ca)?;
        let roots = match (self.data_dir, self.cluster_dir) {
            (Some(data), cluster) => Some(Roots::new(data, cluster)),
            (None, Some(_)) if outside.is_none() => return Err(OptionError::NoDataDirectory),
            (None, _) => None,
        };
        let mode = match (roots, outside) {
            (Some(roots), Some(outside)) => Mode::Cluster { roots, outside },
            (None, Some(_)) => return Err(OptionError::NoSharedVolume),
            (Some(roots), None) => Mode::Standalone(roots),
            (None, None) => Mode::LocalDev,
        };
        Ok(Checked {
            mode,
            listen: self.listen,
            advertised,
            admin_listen: self.admin_listen,
            shards: self.shards,
            broker: BrokerId(broker_id),
            heartbeat_listen: self.heartbeat_listen,
            heartbeat_tls,
            heartbeat_advertise: self.heartbeat_advertise,
            log_level: self.log_level,
            config,
            accept_nfs3: self.accept_nfs3,
        })
    }
}

fn refuse_contradictions(settings: &[Setting]) -> Result<(), OptionError> {
    for (position, Setting { name, value }) in settings.iter().enumerate() {
        let earlier = settings[..position].iter().find(|earlier| earlier.name == *name && earlier.value != *value);
        if let Some(earlier) = earlier {
            let (first, second) = (earlier.value.clone(), value.clone());
            return Err(OptionError::SetTwice { name: name.clone(), first, second });
        }
    }
    Ok(())
}

/// All of them or none.
fn tls_files(
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    authority: Option<PathBuf>,
) -> Result<Option<TlsFiles>, OptionError> {
    match (certificate, key, authority) {
        (Some(certificate), Some(key), Some(authority)) => Ok(Some(TlsFiles { certificate, key, authority })),
        (None, None, None) => Ok(None),
        (certificate, key, authority) => {
            let given = [
                ("--heartbeat-tls-certificate", certificate.is_some()),
                ("--heartbeat-tls-key", key.is_some()),
                ("--heartbeat-tls-ca", authority.is_some()),
            ];
            let missing = given.iter().filter(|(_, is_given)| !is_given).map(|&(option, _)| option).collect();
            Err(OptionError::IncompleteTls(missing))
        }
    }
}

fn advertised(listen: &[NamedAddress], advertise: &[NamedAddress]) -> Result<Vec<ListenerAddress>, OptionError> {
    for (position, address) in advertise.iter().enumerate() {
        if !listen.iter().any(|listener| listener.name == address.name) {
            let names = listen.iter().map(|listener| &*listener.name).collect::<Vec<_>>().join(", ");
            return Err(OptionError::NoSuchListener(address.clone(), names));
        }
        if advertise[..position].iter().any(|other| other.name == address.name) {
            return Err(OptionError::AdvertisedTwice(address.clone()));
        }
        if address.port == 0 || matches!(&*address.host, "0.0.0.0" | "::") {
            return Err(OptionError::NotReachable(address.clone()));
        }
    }
    let of = |name: &Arc<str>| advertise.iter().find(|address| address.name == *name);
    let listeners = listen.iter().map(|listener| ListenerAddress {
        name: Arc::clone(&listener.name),
        advertised: of(&listener.name).map(|address| (Arc::clone(&address.host), address.port)),
    });
    Ok(listeners.collect())
}

impl Checked {
    /// The configuration with the addresses that were really bound: port 0 has become another one.
    pub(crate) fn config_of_bound(&self, bound: &[BoundListener]) -> BrokerConfig {
        let real = self.listen.iter().map(|listen| {
            let bound = bound.iter().find(|bound| bound.name == listen.name).expect("every listener is bound");
            NamedAddress { port: bound.address.port(), ..listen.clone() }
        });
        self.config.clone().with_option("listeners", listener_urls(&real.collect::<Vec<_>>()))
    }
}

/// As Kafka writes a list of listeners.
fn listener_urls(addresses: &[NamedAddress]) -> String {
    addresses.iter().map(listener_url).collect::<Vec<_>>().join(",")
}

fn listener_url(address: &NamedAddress) -> String {
    let NamedAddress { name, host, port } = address;
    if host.contains(':') { format!("{name}://[{host}]:{port}") } else { format!("{name}://{host}:{port}") }
}

fn settings_of_variable(text: &str) -> Result<Vec<Setting>, OptionError> {
    let mut settings: Vec<Setting> = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        match (part.parse(), settings.last_mut()) {
            (Ok(setting), _) => settings.push(setting),
            (Err(_), Some(list)) => list.value = format!("{},{part}", list.value),
            (Err(_), None) => return Err(OptionError::SettingsVariable(part.to_owned())),
        }
    }
    Ok(settings)
}

/// What to say about a bad value that no argument holds: it came from the option's variable.
fn value_of_variable(error: &clap::Error, arguments: &[String]) -> Option<String> {
    let (Some(ContextValue::String(argument)), Some(ContextValue::String(value))) =
        (error.get(ContextKind::InvalidArg), error.get(ContextKind::InvalidValue))
    else {
        return None;
    };
    let option = argument.split_whitespace().next()?;
    if arguments.iter().any(|given| given.split('=').next() == Some(option)) {
        return None;
    }
    let command = Options::command();
    let definition = command.get_arguments().find(|known| known.get_long() == option.strip_prefix("--"))?;
    let variable = definition.get_env()?.to_string_lossy();
    let cause = std::error::Error::source(error).map_or_else(String::new, |cause| format!(": {cause}"));
    Some(format!("invalid value '{value}' for {option}, given by {variable}{cause}"))
}

fn shards(text: &str) -> Result<u16, &'static str> {
    let number = text.parse().ok().filter(|number| (1..=1024).contains(number));
    number.ok_or("accepted is a whole number from 1 to 1024")
}

fn broker_id(text: &str) -> Result<i32, &'static str> {
    text.parse().ok().filter(|&id| id >= 0).ok_or("accepted is a whole number from 0 to 2147483647")
}

fn yes_or_no(text: &str) -> Result<bool, &'static str> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err("accepted is true, yes, on or 1, and false, no, off or 0"),
    }
}

fn socket_address(text: &str) -> Result<SocketAddr, String> {
    let accepted = "accepted is HOST:PORT, for example 127.0.0.1:8080, [::1]:8080 or 0.0.0.0:0";
    let mut addresses = text.to_socket_addrs().map_err(|error| format!("{error}; {accepted}"))?;
    addresses.next().ok_or_else(|| format!("the host has no address; {accepted}"))
}

/// Looked up by the other brokers, so not here.
fn heartbeat_address(text: &str) -> Result<String, String> {
    let accepted = "accepted is HOST:PORT, for example kaas-0.example.net:9094 or [fd00::1]:9094";
    let (host, port) = text.rsplit_once(':').ok_or(accepted)?;
    let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
    let is_host = !host.is_empty() && (!host.contains(':') || (host.starts_with('[') && host.ends_with(']')));
    if is_port && is_host { Ok(text.to_owned()) } else { Err(accepted.to_owned()) }
}

fn log_level(text: &str) -> Result<Targets, String> {
    let mut targets = Targets::new().with_default(LevelFilter::INFO);
    for part in text.split(',').map(str::trim) {
        let (module, level) = part.split_once('=').map_or((None, part), |(module, level)| (Some(module), level));
        let level = match level.to_ascii_lowercase().as_str() {
            "off" => LevelFilter::OFF,
            "error" => LevelFilter::ERROR,
            "warn" => LevelFilter::WARN,
            "info" => LevelFilter::INFO,
            "debug" => LevelFilter::DEBUG,
            "trace" => LevelFilter::TRACE,
            _ => {
                let accepted = "off, error, warn, info, debug, trace, or MODULE=LEVEL";
                return Err(format!("'{part}' is no level; accepted is {accepted}, separated by commas"));
            }
        };
        targets = match module {
            Some(module) => targets.with_target(module, level),
            None => targets.with_default(level),
        };
    }
    Ok(targets)
}

/// The settings of the table, for `--help`.
fn settings_help() -> String {
    let mut own = String::new();
    let mut defaults = String::new();
    for row in BROKER_CONFIGS.iter() {
        let definition = &row.definition;
        let default = definition.default.unwrap_or("unset");
        let text = match row.origin {
            Origin::Option(_) => continue,
            Origin::Setting => &mut own,
            Origin::TopicDefault(_) => &mut defaults,
        };
        let mut line = format!("  {}={default}\n      {}", definition.name, definition.documentation);
        if let Some(kafka) = definition.kafka_default {
            line += &format!(" (Kafka's default: {kafka})");
        }
        line += &match definition.effect {
            Effect::Acted => "\n".to_owned(),
            Effect::Shown(reason) => format!(" Accepted without effect: {reason}.\n"),
            Effect::OnlyDefault(reason) => format!(" Only the default is accepted: {reason}.\n"),
        };
        *text += &line;
    }
    format!(
        "Settings (--set NAME=VALUE, or {SETTINGS}=NAME=VALUE,…), with their defaults:\n{own}\n\
         Defaults of topics, for those that do not set the configuration themselves:\n{defaults}"
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use kaas_net::listener;

    use super::*;

    fn parse(arguments: &[&str]) -> Result<Options, String> {
        let arguments = std::iter::once("kaas").chain(arguments.iter().copied());
        Options::try_parse_from(arguments).map_err(|error| error.to_string())
    }

    fn check(arguments: &[&str], variables: &[(&str, &str)]) -> Result<Checked, OptionError> {
        let variable =
            |name: &str| variables.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned());
        parse(arguments).unwrap().check(variable)
    }

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn without_options_it_is_local_dev_on_the_usual_ports() {
        let checked = check(&[], &[]).unwrap();
        assert_eq!(checked.mode, Mode::LocalDev);
        assert_eq!(checked.listen[0].to_string(), "PLAINTEXT=127.0.0.1:9092");
        assert_eq!(checked.admin_listen.to_string(), "127.0.0.1:8080");
        assert_eq!((checked.broker, checked.shards), (BrokerId(1), None));
        assert_eq!(checked.advertised, [ListenerAddress { name: "PLAINTEXT".into(), advertised: None }]);
    }

    #[test]
    fn listeners_have_names_and_may_be_ipv6() {
        let arguments = [
            "--data-dir",
            "/d",
            "--listen",
            "A=[::1]:0",
            "--listen",
            "b=0.0.0.0:9",
            "--advertise",
            "b=kaas.example:19",
        ];
        let checked = check(&arguments, &[]).unwrap();
        assert_eq!(checked.mode, Mode::Standalone("/d".into()));
        assert_eq!(&*checked.listen[0].host, "::1");
        assert_eq!(checked.advertised[1].advertised, Some(("kaas.example".into(), 19)));
        let bound =
            listener::bind(&["A=127.0.0.1:0", "B=127.0.0.1:0"].map(|address| address.parse().unwrap()), 1).unwrap();
        let entries = checked.config_of_bound(&bound[0]).entries();
        let value = |name: &str| entries.iter().find(|entry| entry.definition.name == name).unwrap().value.clone();
        let [a, b] = [0, 1].map(|listener| bound[0][listener].address.port());
        assert_eq!(value("listeners").unwrap(), format!("A://[::1]:{a},B://0.0.0.0:{b}"), "the ports are real ones");
        assert_eq!(value("advertised.listeners").unwrap(), "B://kaas.example:19");
        assert_eq!((value("log.dirs").unwrap().as_str(), value("broker.id").unwrap().as_str()), ("/d", "1"));
    }

    #[test]
    fn a_bad_option_is_named_with_its_value_and_what_is_accepted() {
        for (arguments, parts) in [
            (["--listen", "9092"], ["--listen", "'9092'", "HOST:PORT"]),
            (["--listen", "::1:9092"], ["--listen", "'::1:9092'", "[::1]:9092"]),
            (["--admin-listen", "8080"], ["--admin-listen", "'8080'", "127.0.0.1:8080"]),
            (["--shards", "0"], ["--shards", "'0'", "1 to 1024"]),
            (["--broker-id", "-3"], ["--broker-id", "'-3'", "0 to"]),
            (["--shards", "x"], ["--shards", "'x'", "1 to 1024"]),
            (["--log-level", "loud"], ["--log-level", "'loud'", "debug"]),
            (["--set", "num.partitions"], ["--set", "'num.partitions'", "NAME=VALUE"]),
        ] {
            let joined = arguments.join("=");
            for error in [parse(&[&joined]).unwrap_err(), parse(&arguments).unwrap_err()] {
                for part in parts {
                    assert!(error.contains(part), "{part} is missing in: {error}");
                }
            }
        }
    }

    #[test]
    fn options_must_fit_together() {
        let refused = |arguments: &[&str]| check(arguments, &[]).unwrap_err().to_string();
        let error = refused(&["--advertise", "X=h:1"]);
        assert!(error.contains("X=h:1") && error.contains("(PLAINTEXT)"), "{error}");
        let error = refused(&["--advertise", "0.0.0.0:9092"]);
        assert!(error.contains("--advertise PLAINTEXT=0.0.0.0:9092"), "{error}");
        let error = refused(&["--advertise", "h:1", "--advertise", "h:2"]);
        assert!(error.contains("twice"), "{error}");
        let error = refused(&["--set", "num.partitions=1", "--set", "num.partitions=2"]);
        assert!(error.contains("num.partitions") && error.contains("'1'") && error.contains("'2'"), "{error}");
        assert!(check(&["--set", "num.partitions=1", "--set", "num.partitions=1"], &[]).is_ok());
        let error = refused(&["--set", "num.partitions=0"]);
        assert_eq!(
            error,
            "--set invalid value '0' for num.partitions: accepted is a whole number of 32 bits, 1 or more"
        );
    }

    #[test]
    fn a_pod_is_a_broker_of_a_cluster() {
        let pod = |name: &str, arguments: &[&str]| check(arguments, &[("MY_POD_NAME", name)]);
        let checked = pod("kaas-3", &["--data-dir", "/d", "--kubernetes-namespace", "n"]).unwrap();
        let (pod_name, service) = ("kaas-3".to_owned(), "kaas-headless".to_owned());
        let outside = Outside::Kubernetes { pod: pod_name, service, namespace: Some("n".to_owned()) };
        assert_eq!(checked.mode, Mode::Cluster { roots: Roots::from("/d"), outside });
        assert_eq!(checked.broker, BrokerId(3));
        assert_eq!(pod("kaas-3", &["--data-dir", "/d", "--broker-id", "3"]).unwrap().broker, BrokerId(3));
        let error = pod("kaas-3", &["--data-dir", "/d", "--broker-id", "7"]).unwrap_err().to_string();
        assert!(error.contains("--broker-id 7") && error.contains("kaas-3") && error.contains("or give 3"), "{error}");
        for arguments in [&["--data-dir", "/d"][..], &["--data-dir", "/d", "--broker-id", "7"]] {
            let error = pod("kaas", arguments).unwrap_err().to_string();
            assert!(error.contains("'kaas'") && error.contains("StatefulSet"), "{error}");
        }
        let error = pod("kaas-0", &[]).unwrap_err().to_string();
        assert!(error.contains("--data-dir"), "{error}");
        assert_eq!(pod("", &[]).unwrap().mode, Mode::LocalDev);
        let variables = [("MY_POD_NAME", "kaas-3"), ("MY_POD_NAMESPACE", "of-the-pod")];
        let Mode::Cluster { outside: Outside::Kubernetes { namespace, .. }, .. } =
            check(&["--data-dir", "/d"], &variables).unwrap().mode
        else {
            panic!("a pod is a broker of a cluster");
        };
        assert_eq!(namespace.as_deref(), Some("of-the-pod"));
    }

    #[test]
    fn a_cluster_directory_comes_beside_a_data_directory() {
        let roots = Roots::new("/d".into(), Some("/c".into()));
        let both = ["--data-dir", "/d", "--cluster-dir", "/c"];
        assert_eq!(check(&both, &[]).unwrap().mode, Mode::Standalone(roots.clone()));
        let clustered = check(&[&both[..], &["--cluster-stand-in", "/s"]].concat(), &[]).unwrap();
        assert_eq!(clustered.mode.roots(), Some(&roots));
        let error = check(&["--cluster-dir", "/c"], &[]).unwrap_err().to_string();
        assert!(error.contains("--cluster-dir (KAAS_CLUSTER_DIR) without --data-dir"), "{error}");
    }

    #[test]
    fn a_cluster_needs_a_volume() {
        let error = check(&["--cluster-stand-in", "/s"], &[]).unwrap_err().to_string();
        assert!(error.contains("--data-dir"), "{error}");
        let checked = check(&["--cluster-stand-in", "/s", "--data-dir", "/d", "--broker-id", "7"], &[]).unwrap();
        let outside = Outside::StandIn("/s".into());
        assert_eq!(checked.mode, Mode::Cluster { roots: Roots::from("/d"), outside });
        assert_eq!((checked.broker, checked.heartbeat_listen.port()), (BrokerId(7), 9094));
    }

    #[test]
    fn heartbeats_are_encrypted_with_all_three_files_or_not_at_all() {
        let tls = |name: &str| [format!("--heartbeat-tls-{name}"), format!("/tls/{name}")];
        let checked = |names: &[&str]| {
            let arguments: Vec<String> = names.iter().flat_map(|name| tls(name)).collect();
            check(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), &[])
        };
        assert_eq!(checked(&[]).unwrap().heartbeat_tls, None);
        let [certificate, key, authority] = ["certificate", "key", "ca"].map(|name| format!("/tls/{name}").into());
        let files = TlsFiles { certificate, key, authority };
        assert_eq!(checked(&["ca", "key", "certificate"]).unwrap().heartbeat_tls, Some(files));
        let error = checked(&["key"]).unwrap_err().to_string();
        assert!(error.starts_with("--heartbeat-tls-certificate and --heartbeat-tls-ca is missing"), "{error}");
        assert!(checked(&["key", "certificate"]).unwrap_err().to_string().starts_with("--heartbeat-tls-ca is missing"));
    }

    #[test]
    fn the_heartbeat_port_may_be_reached_elsewhere() {
        for good in ["proxy:1", "kaas-0.example.net:9094", "[fd00::1]:9094"] {
            let checked = check(&["--heartbeat-advertise", good], &[]).unwrap();
            assert_eq!(checked.heartbeat_advertise.as_deref(), Some(good));
        }
        for bad in ["proxy", "proxy:0", "proxy:port", ":9094", "fd00::1:9094"] {
            assert!(heartbeat_address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn settings_of_the_environment_come_first_and_may_be_lists() {
        let variables = [("KAAS_SET", "log.cleanup.policy=compact,delete, num.partitions=3,log.retention.ms=5")];
        let checked = check(&["--set", "num.partitions=4"], &variables).unwrap();
        assert_eq!(checked.config.num_partitions, 4);
        let entries = checked.config.entries();
        let policy = entries.iter().find(|entry| entry.definition.name == "log.cleanup.policy").unwrap();
        assert_eq!(policy.value.as_deref(), Some("compact,delete"));
        let error = check(&[], &[("KAAS_SET", "delete")]).unwrap_err().to_string();
        assert!(error.starts_with("KAAS_SET holds 'delete'"), "{error}");
    }

    #[test]
    fn log_levels_go_by_module() {
        let level = log_level("warn,kaas_net=debug").unwrap();
        assert!(level.would_enable("kaas_net::connection", &tracing::Level::DEBUG));
        assert!(!level.would_enable("kaas_core", &tracing::Level::INFO));
    }

    #[test]
    fn help_explains_every_option_and_lists_every_setting() {
        let help = Options::command().render_long_help().to_string();
        for argument in Options::command().get_arguments() {
            let name = argument.get_long().unwrap();
            assert!(help.contains(&format!("--{name}")), "{name}");
            assert!(name == "help" || name == "version" || argument.get_help().is_some(), "{name} is not explained");
            let by_variable = argument.get_env().is_some() || matches!(name, "set" | "help" | "version");
            assert!(by_variable, "{name} can't be given by environment");
        }
        for row in BROKER_CONFIGS.iter() {
            let settable = !matches!(row.origin, Origin::Option(_));
            assert_eq!(help.contains(&format!("  {}=", row.definition.name)), settable, "{}", row.definition.name);
        }
        assert!(help.contains("flush.interval.messages=1\n"), "{help}");
        assert!(help.contains(SETTINGS));
    }
}
