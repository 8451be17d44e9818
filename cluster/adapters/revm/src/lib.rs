//! The state of an EVM chain in a Coppice ledger, for programs that run blocks by revm.
//!
//! A [`Chain`] is the chain's state in the ledger. Each block is one version of the ledger, and the
//! root of a state is the state root of its version, so there are no tries of Ethereum. A [`Block`]
//! is the `Database` on which revm runs the transactions of the next block. [`Chain::stage`] asks
//! the ledger for the root that the block leads to, and [`Chain::commit`] writes it. A [`View`] is
//! a `DatabaseRef` of any state that stands.
//!
//! ```no_run
//! use coppice_revm::{Chain, Error, Options};
//! use revm::{Context, ExecuteCommitEvm, MainBuilder, MainContext, context::TxEnv};
//!
//! # fn next_block(options: Options, transactions: Vec<TxEnv>) -> Result<(), Error> {
//! let mut chain = Chain::open(options)?;
//! let mut block = chain.block()?;
//! let mut evm = Context::mainnet().with_db(&mut block).build_mainnet();
//! for transaction in transactions {
//!     let _receipt = evm.transact_commit(transaction);
//! }
//! let mut staged = chain.stage(&block)?;
//! println!("agree on the root {}, and then", staged.root());
//! chain.commit(&mut staged)?;
//! # Ok(())
//! # }
//! ```
//!
//! Calls block their thread, and may come from within a tokio runtime. Each value is proven under
//! the ledger's signed log, unless [`Options::cache`] says otherwise. Rules from Spurious Dragon on
//! are required.
//!
//! ```text
//!    chain       the newest state: stages, commits, rollbacks
//!      |
//!    block       what transactions change
//!      |
//!    view        reads of one state
//!      |
//!   records      keys and values, as other adapters have them -- driver: waits for calls
//! ```

#![warn(missing_docs)]

mod block;
mod chain;
mod driver;
mod error;
mod options;
mod records;
mod view;

pub use block::Block;
pub use chain::{Chain, Head, Staged};
pub use error::Error;
pub use options::Options;
pub use records::EMPTY_ROOT;
pub use view::{Accesses, View, accesses_of};
