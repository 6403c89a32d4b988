import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.Callable;

/** What a client program and the driver say to each other: lines on standard input and output (see tests/README.md). */
final class Protocol {
    /** How long any single wait of a case may take before the case fails. */
    static final Duration STEP = Duration.ofSeconds(60);

    private static final BufferedReader INPUT = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

    private Protocol() {}

    static void say(String line) {
        System.out.println(line.strip().replaceAll("\\s+", " "));
        System.out.flush();
    }

    /** Asks the driver to kill -9 the broker and to start it again; returns when it answers. */
    static void killBroker() throws IOException {
        say("KILL");
        String answer = INPUT.readLine();
        if (!"RESTARTED".equals(answer)) throw new IOException("the driver answered " + answer + " instead of RESTARTED");
    }

    static void waitUntil(String what, Callable<Boolean> condition) throws Exception {
        long deadline = System.nanoTime() + STEP.toNanos();
        while (!condition.call()) {
            if (System.nanoTime() > deadline) throw new AssertionError("waited " + STEP.toSeconds() + " s for: " + what);
            Thread.sleep(5);
        }
    }

    static void expectEqual(String what, Object found, Object expected) {
        if (!Objects.equals(found, expected))
            throw new AssertionError(what + ": found " + cut(found) + " where " + cut(expected) + " was expected");
    }

    private static String cut(Object value) {
        String text = String.valueOf(value);
        return text.substring(0, Math.min(text.length(), 300));
    }

    /** Runs the named cases in order; each returns the detail of its result line. */
    static void run(String version, Map<String, Callable<String>> cases, List<String> names) {
        say("VERSION " + version);
        for (String name : names) {
            String result;
            try {
                result = "PASS " + cases.get(name).call();
            } catch (Throwable failure) {
                failure.printStackTrace();
                result = "FAIL " + failure;
            }
            say("CASE " + name + " " + result);
        }
        System.exit(0);
    }
}
