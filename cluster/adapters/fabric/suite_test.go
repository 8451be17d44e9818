package fabric

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hyperledger/fabric/core/ledger/kvledger/txmgmt/statedb"
	"github.com/hyperledger/fabric/core/ledger/kvledger/txmgmt/statedb/commontests"
)

// suite has the common tests of Fabric's state databases. testdata/commontests.txt names those that
// are left out.
var suite = []struct {
	name, channel string
	run           func(*testing.T, statedb.VersionedDBProvider)
}{
	{"TestGetStateMultipleKeys", "testgetmultiplekeys", commontests.TestGetStateMultipleKeys},
	{"TestBasicRW", "testbasicrw", commontests.TestBasicRW},
	{"TestDrop", "testdrop-channel-1", func(t *testing.T, p statedb.VersionedDBProvider) {
		commontests.TestDrop(t, p, func(channel string) { checkDropped(t, p, channel) })
	}},
	{"TestMultiDBBasicRW", "testmultidbbasicrw2", commontests.TestMultiDBBasicRW},
	{"TestDeletes", "testdeletes", commontests.TestDeletes},
	{"TestIterator", "testiterator", commontests.TestIterator},
	{"TestGetVersion", "testgetversion", commontests.TestGetVersion},
	{"TestSmallBatchSize", "testsmallbatchsize", commontests.TestSmallBatchSize},
	{"TestValueAndMetadataWrites", "testvalueandmetadata", commontests.TestValueAndMetadataWrites},
	{"TestPaginatedRangeQuery", "testpaginatedrangequery", commontests.TestPaginatedRangeQuery},
	{
		"TestRangeQuerySpecialCharacters",
		"testrangequeryspecialcharacters",
		commontests.TestRangeQuerySpecialCharacters,
	},
	{
		"TestApplyUpdatesWithNilHeight",
		"test-apply-updates-with-nil-height",
		commontests.TestApplyUpdatesWithNilHeight,
	},
	{"TestBatchWithIndividualRetry", "testbatchretry", commontests.TestBatchWithIndividualRetry},
	{"TestDataExportImport", "source_ledger", commontests.TestDataExportImport},
}

// checkDropped looks for a record of a channel that a drop should have deleted.
func checkDropped(t *testing.T, p statedb.VersionedDBProvider, channel string) {
	t.Helper()
	db := must(p.GetDBHandle(channel, nil))(t)
	if at := must(db.GetLatestSavePoint())(t); at != nil {
		t.Errorf("%s has the savepoint %v", channel, at)
	}
	all := must(db.GetFullScanIterator(func(string) bool { return false }))(t)
	defer all.Close()
	if pair := must(all.Next())(t); pair != nil {
		t.Errorf("%s still has %v", channel, pair)
	}
}

func TestTheCommonTestsOfFabricPass(t *testing.T) {
	runs := 0
	for _, test := range suite {
		k := keysOf("fabric/", 0, test.channel)
		for shards, splits := range map[string][][]byte{
			"1 shard": nil,
			// They divide the keys of a namespace, and the namespaces.
			"4 shards": {k.data("ns1", "key2"), k.data("ns1", "key5"), k.data("ns2", "")},
		} {
			t.Run(test.name+", "+shards, func(t *testing.T) {
				options := Options{}
				if os.Getenv(endpointsVariable) != "" {
					// All tests share a ledger.
					runs++
					options.Prefix = fmt.Sprintf("run %d/", runs)
				}
				test.run(t, open(t, startLedger(t, splits...).connect(t, ""), options))
			})
		}
	}
}

// A test that a later version of Fabric adds is run, or is named with a reason.
func TestNoCommonTestOfFabricIsForgotten(t *testing.T) {
	source := filepath.Join(
		fabricDirectory(t),
		"core/ledger/kvledger/txmgmt/statedb/commontests/test_common.go",
	)
	text := string(must(os.ReadFile(source))(t))
	known := exceptions(t, "commontests.txt")
	for _, test := range suite {
		known[test.name] = ""
	}
	there := map[string]bool{}
	for _, match := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(text, -1) {
		there[match[1]] = true
		if _, is := known[match[1]]; !is {
			t.Errorf("%s is neither run nor named in testdata/commontests.txt", match[1])
		}
	}
	for name := range known {
		if !there[name] {
			t.Errorf("Fabric has no common test %s", name)
		}
	}
}

// fabricDirectory is where the module of Fabric lies.
func fabricDirectory(t testing.TB) string {
	t.Helper()
	command := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/hyperledger/fabric")
	return strings.TrimSpace(string(must(command.Output())(t)))
}

// exceptions reads names of tests with their reasons.
func exceptions(t testing.TB, file string) map[string]string {
	t.Helper()
	reasons := map[string]string{}
	for line := range strings.Lines(string(must(os.ReadFile(filepath.Join("testdata", file)))(t))) {
		name, reason, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name == "" || name == "#" {
			continue
		}
		if reasons[name] = strings.TrimSpace(reason); reasons[name] == "" {
			t.Fatalf("%s: %s has no reason", file, name)
		}
	}
	return reasons
}
