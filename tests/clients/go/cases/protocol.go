// Package cases has the case list, written once for every client that Go drives.
package cases

import (
	"bufio"
	"fmt"
	"os"
	"reflect"
	"runtime/debug"
	"strings"
	"time"
)

// Step is how long any single wait of a case may take before the case fails.
const Step = 60 * time.Second

var answers = bufio.NewScanner(os.Stdin)

func say(line string) {
	fmt.Println(strings.Join(strings.Fields(line), " "))
}

// killBroker asks the driver to kill -9 the broker and to start it again; it returns when the driver answers.
func killBroker() {
	say("KILL")
	answers.Scan()
	require(answers.Text() == "RESTARTED", "the driver answered %q instead of RESTARTED", answers.Text())
}

// failure is what ends a case; the helpers below throw it so that the cases read as what they do.
type failure string

func require(condition bool, format string, arguments ...any) {
	if !condition {
		panic(failure(fmt.Sprintf(format, arguments...)))
	}
}

func must(err error) {
	require(err == nil, "%v", err)
}

func value[T any](found T, err error) T {
	must(err)
	return found
}

func expectEqual(what string, found, expected any) {
	if !reflect.DeepEqual(found, expected) {
		panic(failure(fmt.Sprintf("%s: found %s where %s was expected", what, cut(found), cut(expected))))
	}
}

func cut(value any) string {
	return fmt.Sprintf("%.300s", fmt.Sprint(value))
}

func waitUntil(what string, condition func() bool) {
	deadline := time.Now().Add(Step)
	for !condition() {
		require(time.Now().Before(deadline), "waited %v for: %s", Step, what)
		time.Sleep(5 * time.Millisecond)
	}
}

// ModuleVersion is the version of a dependency that this program was built with.
func ModuleVersion(path string) string {
	information, _ := debug.ReadBuildInfo()
	for _, module := range information.Deps {
		if module.Path == path {
			return strings.TrimPrefix(module.Version, "v")
		}
	}
	return "unknown"
}

func runCase(name string, work func() string) {
	defer func() {
		switch thrown := recover().(type) {
		case nil:
		case failure:
			say("CASE " + name + " FAIL " + string(thrown))
		default:
			fmt.Fprintln(os.Stderr, string(debug.Stack()))
			say(fmt.Sprintf("CASE %s FAIL panic: %v", name, thrown))
		}
	}()
	say("CASE " + name + " PASS " + work())
}
