// Command k6 is k6 with what its JavaScript can't do for ledgers of members: the module
// `k6/x/coppice` signs requests, and `k6 x judge` verifies their receipts and proofs.
package main

import (
	"go.k6.io/k6/cmd"
	"go.k6.io/k6/js/modules"
	"go.k6.io/k6/subcommand"
)

func init() {
	modules.Register("k6/x/coppice", &module{books: newBooks()})
	subcommand.RegisterExtension("judge", judgeCommand)
}

func main() {
	cmd.Execute()
}

// module is shared by all clients of a process, and so are its books.
type module struct{ books *books }

// NewModuleInstance implements modules.Module.
func (m *module) NewModuleInstance(modules.VU) modules.Instance { return m }

// Exports implements modules.Instance. All functions take and give JSON as text.
func (m *module) Exports() modules.Exports {
	return modules.Exports{Named: map[string]any{
		"founding": founding,
		"request":  request,
		"newest":   newest,
		"author":   author,
		// The books: clients write, and the end of the run reads.
		"acknowledge": m.books.acknowledge,
		"walk":        m.books.walk,
		"finish":      m.books.finish,
	}}
}
