//! Daemons inside this process, and programs that speak their protocol by hand: over real sockets
//! of the loopback network, with real rings and real memory.

mod captures;
mod channels;
mod cm_client;
mod completion_queues;
mod connections;
mod datagrams;
mod events;
mod harness;
mod histories;
mod hosted;
mod hostile;
mod isolation;
mod links;
mod listing;
mod logs;
mod metrics;
mod reload;
mod rules;
mod scale;
mod service;
mod services;
mod shared_receives;
mod slots;
mod startup;
mod stories;
mod sysfs;
mod testing;
mod traffic;
mod unreliable;
mod upgrade;
mod windows;
mod workers;
